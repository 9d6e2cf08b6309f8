"""Where an interruption may land in a thread, decided by the frames that it would unwind.

Pure: reads frames and code objects only. An asynchronous exception can break invariants of the code around it: it
leaves a partially imported package, a lock held between its `acquire` and its `try`, or an incomplete cleanup.

A signal handler runs after a call, at the start of a function, at the end of a loop iteration, or inside a blocking C
call. The code object, its instructions and its exception table therefore determine what runs before the next such
point. Where it must not land, `destination` names the frame that has to be reached, and `is_safe_line` finds the line
there that it may land on: a line can begin at instructions at which no handler runs, as between the body of a `with`
and its `__exit__`. Opcodes are matched by name prefixes that are stable from CPython 3.11 on.
"""

from __future__ import annotations

import dis
import enum
import functools
from collections.abc import Iterator, Set
from types import CodeType, FrameType
from typing import Final, NamedTuple

from nvrx_core.values import value

__all__ = [
    "Judged",
    "Landing",
    "LandingTarget",
    "destination",
    "drops_exception",
    "handlers_of",
    "is_library",
    "is_safe_line",
    "judge",
    "location",
    "may_land_in",
]  # fmt: skip

_BATCH: Final = ("torch/distributed/distributed_c10d.py", "batch_isend_irecv")
_STDLIB: Final = dis.dis.__code__.co_filename.rpartition("/")[0] + "/"
_EVENT_LOOP: Final = f"{_STDLIB}asyncio/"
"""A loop takes a task out of its queue before it runs it: one that is lost between never ends, not even cancelled."""
_KEEPS_NOTHING: Final = (
    _EVENT_LOOP,
    *(f"{_STDLIB}{path}" for path in ("contextlib.py", "importlib/", "logging/", "queue.py", "threading.py")),
)
"""Library code that starts and opens nothing: the line after a call of it does not lose what the call has made."""
_IMPORTLIB: Final = f"{_STDLIB}importlib/__init__.py"
"""`map(import_module, names)` begins no line of the user's; before its first line, an import has not begun."""
_STARTS: Final = (f"{_STDLIB}threading.py", "start")
_IMPORT: Final = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_ENTRIES: Final = frozenset({"__enter__", "__aenter__"})
_ACQUIRERS: Final = frozenset(
    {"__enter__", "acquire", "_acquireLock", "handle", "flush"}  # the last two by `with`, since Python 3.13
)
_CLEANUPS: Final = frozenset({"__exit__", "__aexit__", "__del__"})
_REPORT: Final = (f"{_EVENT_LOOP}base_events.py", "call_exception_handler")
"""Called by the destructor of a task that nobody has awaited, which is C code: an exception raised there is lost."""
_RELEASE: Final = (f"{_STDLIB}logging/__init__.py", "_releaseLock")
"""Called by C code after a fork, up to Python 3.12: an exception is lost, and no other thread can log any more."""
_STOPS: Final = ("CALL", "RESUME", "RAISE", "RERAISE", "YIELD", "SEND", "BEFORE_", "LOAD_SPECIAL", "GET_AWAITABLE")
_EXIT: Final = ("LOAD_CONST", "LOAD_CONST", "LOAD_CONST", ("PRECALL", "CALL"))
"""The instructions that call `__exit__` at the end of a `with`: with None, three times."""
_NOT_BEGUN: Final = frozenset({"RESUME", "SEND", "YIELD_VALUE", "JUMP_BACKWARD_NO_INTERRUPT"})
"""Instructions at which a generator or coroutine goes on with what it awaits: the interpreter raises nothing there."""
_HANDLER_KINDS: Final = frozenset(
    dis.opmap[name]
    for name in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "WITH_EXCEPT_START", "PUSH_EXC_INFO", "RERAISE")
    if name in dis.opmap
)
_CACHE: Final = dis.opmap["CACHE"]
_JUMPS: Final = frozenset(dis.hasjrel)


class Landing(enum.Enum):
    """The effect of an interruption at a point of the code."""

    SAFE = "it unwinds cleanly"
    FRAGILE = "it breaks an invariant, unless the thread waits inside a C call"
    ACQUIRES = "it leaves a lock held that was just acquired"
    CLEANUP = "it cuts a cleanup short"
    BATCH = "it leaves a group of NCCL operations open"
    IMPORT = "it leaves a partially imported module"


@value
class Judged:
    """A landing and its location: file and line."""

    landing: Landing
    location: str


def judge(frame: FrameType | None, catching_code: CodeType | None = None, *, library: bool = True) -> Judged:
    """Return the effect of an interruption in `frame`.

    Args:
        frame: the innermost frame.
        catching_code: the code of the frame that catches the interruption; its callers are ignored.
        library: whether all of the standard library and of nvrx counts as fragile, and not only asyncio.
    """
    stack = list(_unwound(frame, catching_code))
    if frame is None or not stack:
        return Judged(Landing.SAFE, "unknown")
    importing = next((each for each in reversed(stack) if each.f_code.co_filename in _IMPORT), None)
    if importing is not None:
        return Judged(Landing.IMPORT, location(importing))
    batch = next((each for each in stack if _is_batch(each.f_code)), None)
    if batch is not None:
        return Judged(Landing.BATCH, location(batch))
    cleanup = next((each for each in stack if _is_cleanup(each.f_code) or _is_in_finally(each)), None)
    if cleanup is not None:
        return Judged(Landing.CLEANUP, location(cleanup))
    if any(each.f_code.co_name in _ENTRIES for each in stack) or _enters_protected_range(stack):
        return Judged(Landing.SAFE if _waits_for_lock(frame) else Landing.ACQUIRES, location(frame))
    fragile = is_library(frame) if library else frame.f_code.co_filename.startswith(_EVENT_LOOP)
    return Judged(Landing.FRAGILE if fragile else Landing.SAFE, location(frame))


class LandingTarget(NamedTuple):
    """What a thread has to reach before an interruption may land.

    Attributes:
        frame: the frame that has to begin a line.
        calls: whether a call on the way there that is not the library's may be landed in as well.
    """

    frame: FrameType
    calls: bool


def destination(frame: FrameType | None, catching_code: CodeType | None = None) -> LandingTarget | None:
    """Return what has to be reached from `frame`, where an interruption must not land; None if firing again has to do.

    That is the caller of the outermost frame whose whole code is fragile, or the frame whose `finally` body runs.
    Without any, it is the innermost frame that is not the library's, unless it waits for what the library starts or
    opens: a process that has just been started would be lost on the next line, which often is the one that records it.
    """
    stack = list(_unwound(frame, catching_code))
    for index in range(len(stack) - 1, -1, -1):
        if _is_fragile(stack[index]):
            return LandingTarget(stack[index + 1], calls=False) if index + 1 < len(stack) else None
        if _is_in_finally(stack[index]):
            return LandingTarget(stack[index], calls=False)
    user = next((index for index, each in enumerate(stack) if not is_library(each)), None)
    if user is None:
        return None
    if user == 0 or _keeps_nothing(stack[user - 1].f_code):
        return LandingTarget(stack[user], calls=True)
    return LandingTarget(stack[0], calls=False) if _enters_protected_range(stack) else None


def is_safe_line(frame: FrameType, catching_code: CodeType | None = None, within: Set[int] = frozenset()) -> bool:
    """Return whether an interruption may land in `frame`, the innermost one, which begins a line.

    It lands neither where an exception handler of this frame begins nor where it would skip a call of `__exit__`,
    besides what `judge` says of the frames around it.

    Args:
        frame: the frame.
        catching_code: the code of the frame that catches the interruption.
        within: handlers of the frame that were entered before the interruption was deferred (`handlers_of`): one of
            the calls that have begun in them might have raised it as well.
    """
    stack = list(_unwound(frame, catching_code))
    if any(_is_fragile(each) or _is_in_finally(each) for each in stack):
        return False
    if is_library(frame):
        return frame.f_code.co_filename == _IMPORTLIB and frame.f_lasti == _first_line(frame.f_code)
    if not (handlers_of(frame) <= within and _is_safe_offset(frame.f_code, frame.f_lasti)):
        return False
    enters, returns = _reached_from(frame.f_code, frame.f_lasti)
    return not (enters or (returns and _enters_protected_range(stack[1:])))


def may_land_in(frame: FrameType) -> bool:
    """Return whether a frame that begins has lines to land on: the user's have, and a call of importlib's has one."""
    return not is_library(frame) or frame.f_code.co_filename == _IMPORTLIB


def handlers_of(frame: FrameType) -> Set[int]:
    """Return which handlers of its own a frame runs: an `except`, or a `finally` or `with` after an exception."""
    return _handlers_around(frame.f_code, frame.f_lasti)


def drops_exception(frame: FrameType) -> bool:
    """Return whether the frame ends an `except`, or a `with` that suppresses: the caught exception goes there."""
    name = _step_at(frame.f_code, frame.f_lasti).name
    return (name == "POP_EXCEPT" or name.startswith("STORE_")) and not _is_in_finally(frame)


def _is_fragile(frame: FrameType) -> bool:
    """Return whether nothing may land in the frame nor in what it calls."""
    code = frame.f_code
    return _is_cleanup(code) or code.co_name in _ENTRIES or code.co_filename in _IMPORT or _is_batch(code)


def _is_cleanup(code: CodeType) -> bool:
    return code.co_name in _CLEANUPS or (code.co_filename, code.co_name) in (_REPORT, _RELEASE)


def _keeps_nothing(code: CodeType) -> bool:
    return code.co_filename.startswith(_KEEPS_NOTHING) and (code.co_filename, code.co_name) != _STARTS


def _unwound(frame: FrameType | None, catching_code: CodeType | None) -> Iterator[FrameType]:
    while frame is not None and frame.f_code is not catching_code:
        yield frame
        frame = frame.f_back


def location(frame: FrameType | None) -> str:
    """Return file and line of the innermost frame that belongs neither to the standard library nor to nvrx."""
    innermost = frame
    while frame is not None and is_library(frame):
        frame = frame.f_back
    frame = frame or innermost
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown"


def is_library(frame: FrameType) -> bool:
    """Return whether the frame runs code of the standard library or nvrx, whose invariants callers do not see."""
    path = frame.f_code.co_filename
    if path.startswith("<frozen ") or (path.startswith(_STDLIB) and "-packages/" not in path):
        return True
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("nvrx_core.") and not module.startswith("nvrx_core.testing")


def _is_batch(code: CodeType) -> bool:
    """Return whether torch begins a group of NCCL operations in this function, and ends it without a `finally`."""
    path, name = _BATCH
    return code.co_name == name and code.co_filename.endswith(path)


def _is_in_finally(frame: FrameType) -> bool:
    code = frame.f_code
    return bool(code.co_exceptiontable) and any(first <= frame.f_lineno <= last for first, last in _finally_lines(code))


def _waits_for_lock(frame: FrameType) -> bool:
    """Return whether the frame, in `logging` or `threading`, waits for a re-entrant lock that its thread does not hold.

    A thread that was seen waiting for the lock may have acquired the lock before the signal reached it. Only a
    re-entrant lock knows its owner.
    """
    if frame.f_code.co_name not in _ACQUIRERS or not is_library(frame):
        return False
    owner = frame.f_locals.get("self")
    lock = getattr(owner, "lock", None) or getattr(owner, "_lock", None) or frame.f_globals.get("_lock")
    is_owned = getattr(lock, "_is_owned", None)
    return is_owned is not None and not is_owned()


def _enters_protected_range(stack: list[FrameType]) -> bool:
    """Return whether the thread enters a `try` or `with` before the next point at which an interruption can land.

    This counts only after a call, which may have acquired what the `try` releases.
    """
    for frame in stack:
        enters, returns = _ahead(frame.f_code, frame.f_lasti)
        if enters or not returns:
            return enters
    return False


# Analysis of code objects


class _Instruction(NamedTuple):
    """An instruction: its name, its jump target, and the next instruction."""

    name: str
    target: int | None
    following: int | None


@functools.lru_cache(maxsize=256)
def _steps(code: CodeType) -> dict[int, _Instruction]:
    """Return the instructions by offset, read from the bytes: `dis` would also look for the value of each argument."""
    text, argument = code.co_code, 0
    offsets = [at for at in range(0, len(text), 2) if text[at] != _CACHE]
    following = dict(zip(offsets, [*offsets[1:], len(text)], strict=True))
    steps = dict[int, _Instruction]()
    for at, after in following.items():
        opcode, argument = text[at], argument << 8 | text[at + 1]
        name, target = dis.opname[opcode], None
        if opcode in _JUMPS:
            target = after + 2 * (-argument if "JUMP_BACKWARD" in name else argument)
        steps[at] = _Instruction(name, target, after if after < len(text) else None)
        argument = argument if opcode == dis.EXTENDED_ARG else 0
    return steps


def _step_at(code: CodeType, at: int) -> _Instruction:
    """Return the instruction that a frame is at: during a call, `at` may be a cache entry behind it."""
    steps = _steps(code)
    return steps[max((offset for offset in steps if offset <= at), default=0)]


@functools.lru_cache(maxsize=256)
def _ranges(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """Return the protected ranges as (start, end, start of the handler)."""
    return tuple((each.start, each.end, each.target) for each in vars(dis.Bytecode(code))["exception_entries"])


def _handler(code: CodeType, offset: int) -> int | None:
    return next((target for start, end, target in _ranges(code) if start <= offset < end), None)


def _handlers(code: CodeType, offset: int) -> set[int]:
    """Return all handlers of an exception raised at `offset`: each handler may be protected by the next."""
    found = set[int]()
    handler = _handler(code, offset)
    while handler is not None and handler not in found:
        found.add(handler)
        handler = _handler(code, handler)
    return found


@functools.lru_cache(maxsize=1024)
def _ahead(code: CodeType, at: int) -> tuple[bool, bool]:
    """Return whether a protected range begins, and whether the function returns, before the next call or loop end."""
    steps, step = _steps(code), _step_at(code, at)
    if step.name == "PRECALL":  # 3.11 executes some calls in PRECALL and skips the following CALL
        step = steps[step.following or 0]
    if not step.name.startswith(("CALL", "BEFORE_")):
        return False, False
    return _reached(code, step.following, _handlers(code, at))


@functools.lru_cache(maxsize=1024)
def _reached_from(code: CodeType, at: int) -> tuple[bool, bool]:
    """Return the same for the instruction at `at`, which has not run yet."""
    return _reached(code, at, _handlers(code, at))


def _reached(code: CodeType, begin: int | None, protecting: set[int]) -> tuple[bool, bool]:
    steps, seen = _steps(code), set[int]()
    pending, returns = [begin], False
    while pending:
        offset = pending.pop()
        if offset is None or offset in seen:
            continue
        seen.add(offset)
        step, handler = steps[offset], _handler(code, offset)
        if handler is not None and handler not in protecting:
            return True, returns
        if step.name.startswith("RETURN"):
            returns = True
        elif not (step.name.startswith(_STOPS) or "JUMP_BACKWARD" in step.name):
            pending += [step.target] + ([] if step.name.startswith("JUMP_") else [step.following])
    return False, returns


@functools.lru_cache(maxsize=64)
def _first_line(code: CodeType) -> int:
    """Return the instruction at which the first line behind the `def` begins."""
    return next((at for at, line in dis.findlinestarts(code) if line not in (None, code.co_firstlineno)), -1)


@functools.lru_cache(maxsize=1024)
def _is_safe_offset(code: CodeType, at: int) -> bool:
    """Return whether a line that begins at `at` is neither the call of `__exit__` nor an await."""
    steps = _steps(code)
    return not (steps[at].name in _NOT_BEGUN or _calls_exit(steps, at))


@functools.lru_cache(maxsize=1024)
def _handlers_around(code: CodeType, at: int) -> Set[int]:
    """Return the handlers that this is part of, by what the interpreter protects them with."""
    steps, handler, found = _steps(code), _handler(code, at), set[int]()
    while handler is not None:
        cleanup = _handler(code, handler)
        if _restores_exception(steps, handler):
            found.add(handler)
        own = steps[handler].name == "PUSH_EXC_INFO" and cleanup is not None
        handler = _handler(code, cleanup) if own and cleanup is not None else cleanup
    return found


def _calls_exit(steps: dict[int, _Instruction], at: int) -> bool:
    """Return whether the end of a `with` begins here: a call of `__exit__` with None, three times."""
    offset: int | None = at
    for expected in _EXIT:
        while offset is not None and steps[offset].name in ("NOP", "SWAP"):
            offset = steps[offset].following
        if offset is None or not steps[offset].name.startswith(expected):
            return False
        offset = steps[offset].following
    return True


def _restores_exception(steps: dict[int, _Instruction], handler: int) -> bool:
    """Return whether this is what the interpreter protects the body of an `except` or `finally` with."""
    following = steps[handler].following
    return steps[handler].name == "COPY" and following is not None and steps[following].name == "POP_EXCEPT"


@functools.lru_cache(maxsize=1024)
def _finally_lines(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Return first and last line of each `finally` body; both compiled copies of a body have the same lines."""
    bodies = [
        _lines(code, target, cleanup)
        for target in sorted({target for _, _, target in _ranges(code)})
        if _is_finally(code.co_code, target) and (cleanup := _handler(code, target)) is not None
    ]
    return tuple((min(lines), max(lines)) for lines in bodies if lines)


def _is_finally(text: bytes, target: int) -> bool:
    """Return whether the handler that begins at `target` belongs to a `finally`."""
    if text[target] != dis.opmap["PUSH_EXC_INFO"] or text[target + 2] == dis.opmap["POP_TOP"]:  # a bare `except:`
        return False
    kinds = (text[at] for at in range(target + 2, len(text), 2) if text[at] in _HANDLER_KINDS)
    return next(kinds, None) in (dis.opmap["PUSH_EXC_INFO"], dis.opmap["RERAISE"])


def _lines(code: CodeType, begin: int, cleanup: int) -> list[int]:
    """Return the lines of a handler's body; its first instruction and the interpreter's cleanup are not part of it."""
    chains = [(start, end, {target} | _handlers(code, target)) for start, end, target in _ranges(code)]
    ranges = [
        (start + 2 * (start == begin), end) for start, end, chain in chains if cleanup in chain and begin not in chain
    ]
    return [
        line
        for first, last, line in code.co_lines()
        if line is not None and any(first < end and last > start for start, end in ranges)
    ]
