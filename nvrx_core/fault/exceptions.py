"""The description of an exception, and the exceptions chained to it: causes, contexts, members of a group. Pure.

`torch.distributed.checkpoint` gathers the exceptions of all ranks in the `failures` of one exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final

__all__ = ["add_note", "chain_contains", "exit_code", "related", "set_traceback", "text_of", "type_name"]

SIGINT_CODE: Final = 130


def related(error: BaseException | None, outside: BaseException | None = None) -> Iterator[BaseException]:
    """Yield the error and every exception chained to it, each once.

    Args:
        error: where to begin.
        outside: left out, and what it leads to: what the caller of the code that raised `error` handles, which the
            interpreter makes the context of each exception that is raised meanwhile.
    """
    seen = set[int]() if outside is None else {id(outside)}
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found
            pending += [found.__context__, found.__cause__, *_members(found)]


def chain_contains(error: BaseException | None, wanted: BaseException) -> bool:
    """Return whether `wanted` is the error or is chained to it."""
    return any(each is wanted for each in related(error))


def set_traceback(error: BaseException, trace: TracebackType | None) -> None:
    """Set the traceback of an exception, also of one that refuses assignments, such as a frozen dataclass."""
    BaseException.with_traceback(error, trace)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, also to one that refuses assignments."""
    vars(error).setdefault("__notes__", []).append(note)


def text_of(error: BaseException) -> str:
    """Return the type and text of an exception; if its `__str__` raises, the type that it raised."""
    try:
        text = str(error)
    except BaseException as failure:  # boundary: the user's code; the fault is reported anyway
        text = f"(no text: its __str__ raised {type_name(type(failure))})"
    return f"{type_name(type(error))}: {text}"


def exit_code(error: BaseException) -> int:
    """Return the exit code of a process that ends by this exit or Ctrl-C; 0 for a success and all other exceptions.

    A code that is a multiple of 256, with which the process ends as if by success, counts as 1: the exit is a fault.
    """
    if isinstance(error, KeyboardInterrupt):
        return SIGINT_CODE
    if not isinstance(error, SystemExit) or error.code is None:
        return 0
    if not isinstance(error.code, int):
        return 1
    return error.code & 0xFF or int(error.code != 0)


def type_name(kind: type[BaseException]) -> str:
    """Return the name of an exception type, qualified by its module unless the type is built in."""
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _members(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions
    is_torch_error = str(type(error).__module__).startswith("torch.distributed.")
    failures = getattr(error, "failures", None) if is_torch_error else None
    if not isinstance(failures, Mapping):
        return ()
    return [part for value in failures.values() for part in _parts(value) if isinstance(part, BaseException)]


def _parts(value: object) -> Iterable[object]:
    return value if isinstance(value, tuple) else (value,)
