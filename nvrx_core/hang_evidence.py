"""What a process shows of a hang: where its main thread is, and what it waits for.

A thread of the process sees frames, the call of torch.distributed with its group and number, and what the groups have
begun. From outside there are what the kernel tells and the text that faulthandler writes: for a process that is
stopped, or of which a call holds the GIL.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import dropwhile
from types import FrameType
from typing import Final

from nvrx_core.collective import RENDEZVOUS, Collective
from nvrx_core.fault.hang_report import HangReport, RankCondition, Waiting
from nvrx_core.fault.stack_text import Frame, main_thread, place_of, waits_for_peers
from nvrx_core.fault.user_frames import is_users
from nvrx_core.process import torch_calls
from nvrx_core.process.thread_wait import ThreadWait, wait_of
from nvrx_core.process.user_packages import user_packages
from nvrx_core.progress.page import Page
from nvrx_core.progress.sampling import open_section
from nvrx_core.values import value

__all__ = ["ThreadObservation", "observe_process", "observe_thread", "report_of", "training_thread", "with_page"]

MAX_FRAMES: Final = 128
_OF_A_STORE: Final = frozenset({"wait", "get"})
"""The methods of a store that wait for another rank."""
_OF_A_RESULT: Final = {"result": "/concurrent/futures/_base.py", "run_forever": "/asyncio/base_events.py"}
"""Functions in which a thread waits for what others do, and their files."""
_OUT: Final = (RankCondition.COMPLETED, RankCondition.RESERVE)


@value
class ThreadObservation:
    """Where a main thread is; the fields are those of `HangReport`."""

    condition: RankCondition
    waiting: Waiting
    place: Frame | None = None
    inner: Frame | None = None
    wait: str = ""
    collective: Collective | None = None


def observe_thread(
    thread: int,
    native_id: int,
    *,
    pending: bool | None,
    out: RankCondition | None = None,
    in_rendezvous: bool = False,
    handler: str = "",
) -> ThreadObservation:
    """Look where a thread of this process is, from another one; it takes a fraction of a millisecond.

    Args:
        thread: its identity, as of `threading.get_ident`.
        native_id: the kernel's id of it.
        pending: whether an operation of a process group may be pending; None: it is not known.
        out: `COMPLETED` or `RESERVE` for a thread that is not in the function.
        in_rendezvous: it is known to create a process group or a store.
        handler: what the files of innermost frames contain that do not count.
    """
    inner_frame = sys._current_frames().get(thread)
    frames = list(_outwards(inner_frame))
    if handler:
        frames = list(dropwhile(lambda frame: handler in frame.f_code.co_filename, frames))
    del inner_frame
    stack = [Frame(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in frames]
    place, inner = place_of(stack, user_packages())
    wait = wait_of(os.getpid(), native_id)
    condition = out or (RankCondition.RUNS if wait.runs else RankCondition.BLOCKED)
    if condition in _OUT:
        waiting, collective = Waiting.ELSEWHERE, None
    elif in_rendezvous:
        waiting, collective = Waiting.WAITS, Collective(RENDEZVOUS)
    else:
        waiting, collective = _waiting(frames, inner or place, pending, wait)
    frames.clear()
    return ThreadObservation(condition, waiting, place, inner, wait.text, collective)


def training_thread(main: int) -> tuple[int, int]:
    """Return identity and kernel's id of the thread that trains: the main one, unless that only waits for another one.

    It waits for the end of a thread that runs the user's code, or for a result, which has no name: then
    it is the one thread that is inside torch.distributed.

    Args:
        main: the identity of the main thread.
    """
    stacks = {thread: list(_outwards(frame)) for thread, frame in sys._current_frames().items()}
    found = _awaited_by(stacks.get(main, []), {thread: each for thread, each in stacks.items() if thread != main})
    native = {each.ident: each.native_id for each in list(threading._active.values())}  # type: ignore[attr-defined]
    stacks.clear()
    return (main, os.getpid()) if found is None else (found, native.get(found) or os.getpid())


def _awaited_by(frames: list[FrameType], others: dict[int, list[FrameType]]) -> int | None:
    """Return the one of some threads that a thread waits for."""
    packages = user_packages()
    for frame in frames:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if is_users(file, packages):
            return None
        if (file, name) == (threading.__file__, "join"):
            joined = getattr(frame.f_locals.get("self"), "ident", None)
            is_theirs = any(is_users(each.f_code.co_filename, packages) for each in others.get(joined or 0, []))
            return joined if is_theirs else None
        if name in _OF_A_RESULT and file.endswith(_OF_A_RESULT[name]):
            inside = [thread for thread, each in others.items() if torch_calls.call_of(each) is not None]
            return inside[0] if len(inside) == 1 else None
    return None


def _waiting(
    frames: list[FrameType], inner: Frame | None, pending: bool | None, wait: ThreadWait
) -> tuple[Waiting, Collective | None]:
    """Return whether the thread waits for other ranks, and in what."""
    inside = []
    for frame in frames:
        if is_users(frame.f_code.co_filename, user_packages()):
            break
        inside.append(frame)
    if (call := torch_calls.call_of(inside)) is not None:
        return Waiting.WAITS, call
    if inner is None:
        return Waiting.ELSEWHERE, None
    torch = torch_calls.torch_folder()
    in_torch = pending is not False and torch != "" and inner.file.startswith(torch)
    called = frames[0].f_code.co_names  # where torch is called from the user's own frame
    in_work = wait.text == "a lock" and "wait" in called  # as `Work.wait`
    on_device = not wait.text and torch_calls.uses_cuda()  # as `item()`, which polls the device
    on_store = wait.text == "a descriptor" and not _OF_A_STORE.isdisjoint(called)
    may_wait = in_torch or on_store or (pending is not False and (in_work or on_device))
    return (Waiting.MAY_WAIT if may_wait else Waiting.ELSEWHERE), None


def observe_process(
    wait: ThreadWait, text: str, packages: frozenset[str] = frozenset(), *, holds_gil: bool = True
) -> ThreadObservation:
    """Return where the main thread of another process is, whose threads do not run.

    Args:
        wait: what the kernel says of its main thread.
        text: what faulthandler has written of it; "" for nothing.
        packages: the installed packages that are the user's.
        holds_gil: a call is known to hold the GIL, unless the process is stopped.
    """
    stack = main_thread(text)
    place, inner = place_of(stack, packages)
    own = RankCondition.RUNS if wait.runs else RankCondition.BLOCKED
    condition = RankCondition.STOPPED if wait.stopped else RankCondition.HOLDS_GIL if holds_gil else own
    waiting = Waiting.MAY_WAIT if waits_for_peers(stack) else Waiting.ELSEWHERE
    return ThreadObservation(condition, waiting, place, inner, wait.text)


def report_of(
    look: ThreadObservation, *, rank: int, initial_rank: int, pid: int, host: str = "",
    begun: Mapping[str, int] | None = None,
) -> HangReport:  # fmt: skip
    """Return the report of a rank by what its process shows; the arguments are fields of the report."""
    return HangReport(
        rank=rank, initial_rank=initial_rank, host=host, pid=pid, condition=look.condition, waiting=look.waiting,
        place=look.place, inner=look.inner, wait=look.wait, collective=look.collective, begun=begun,
    )  # fmt: skip


def with_page(
    report: HangReport, page: Page, *, alive_at: float, stalled: bool, step: int, now: float, rendezvous: int = 0,
    children: Iterable[tuple[int, str]] = (),
) -> HangReport:  # fmt: skip
    """Return a report with what the rank has written to its page.

    Args:
        report: by what the process shows.
        page: that of the rank.
        alive_at: its last sign of life, monotonic seconds: who watches it says what counts.
        stalled: it counts as stalled.
        step: that it has reported last, -1 for none.
        now: monotonic seconds.
        rendezvous: how many it has begun.
        children: its dead child processes.
    """
    section, seconds = open_section(page, now)
    return replace(
        report, silent=max(0.0, now - alive_at), stalled=stalled, step=step, section=section, section_seconds=seconds,
        rendezvous=rendezvous, children=tuple(children),
    )  # fmt: skip


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
