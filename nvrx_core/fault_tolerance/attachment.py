"""The connection of a rank to its rank monitor and its launcher, and the monitored rank as a wrapped call sees it."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple, Protocol

from nvrx_core.fault_tolerance.data import RankInfo, RankMonitorClientError, WorkloadControlRequest
from nvrx_core.fault_tolerance.evidence import EvidenceThread
from nvrx_core.fault_tolerance.recorder import Recorder
from nvrx_core.fault_tolerance.watched import start_time
from nvrx_core.fault_tolerance.wire import WireError, close_all, connect
from nvrx_core.process.forks import disown_in_children, keep_in_children
from nvrx_core.process.signalled_stacks import answer_requests, answer_requests_no_more
from nvrx_core.progress import monitored
from nvrx_core.progress.page import Page, PageError, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.settings import environment

__all__ = [
    "AttachedRank",
    "LocalMonitorPort",
    "ask_launcher",
    "begin_page",
    "get_page",
    "monitor_socket",
    "this_rank",
    "wake_monitor",
]

log = logging.getLogger("nvrx_core.fault_tolerance")
ANSWERS_WITHIN: Final = 30.0
"""Seconds for an answer; a replaced monitor answers after 2 s at most."""
TELLS_WITHIN: Final = 0.5
"""Seconds for notifying a monitor of what it would find by itself soon."""
TRIES: Final = 3
"""A monitor that is lost while it answers is replaced."""


class LocalMonitorPort(Protocol):
    """A rank monitor that the rank itself keeps running."""

    @property
    def path(self) -> str | os.PathLike[str]:
        """The path of its socket."""

    def pause(self) -> None:
        """End the monitor's process."""

    def resume(self) -> None:
        """Start another one."""

    def end(self) -> None:
        """End the monitor permanently."""


class Owner(Protocol):
    """The client of an attached rank."""

    local_monitor: LocalMonitorPort | None

    def shutdown_workload_monitoring(self) -> None:
        """Stop monitoring the rank."""


class AttachedRank:
    """The calling process as a monitored rank; for a wrapped call, and for children of `os.fork`.

    Args:
        owner: its client.
        path: the socket of its monitor.
        recorder: writes its page.
        info: which rank it is.
        stacks: the pipe to which it writes the stacks of its threads on request; -1 for none.
        questions: the socket over which it is asked where it is; -1 for none.
    """

    def __init__(
        self, owner: Owner, path: str, recorder: Recorder, info: RankInfo, *, stacks: int = -1, questions: int = -1
    ) -> None:
        self.owner, self.path, self.recorder, self._info = owner, path, recorder, info
        self._stacks, self._stack_signal = stacks, 0
        self._evidence_thread = _evidence_thread(questions, recorder.page)
        self._in_call = self._is_over = False

    @property
    def page(self) -> Page:
        """Its page."""
        return self.recorder.page

    def begin(self) -> None:
        """Start to be monitored."""
        page, info = self.page, self._info
        page[ProgressField.RANK] = info.global_rank
        page[ProgressField.DETACHED_PID] = 0
        page[ProgressField.ATTACHED_PID], page[ProgressField.ATTACHED_START] = info.pid, start_time(info.pid)
        if self._stacks >= 0:
            self._stack_signal = page[ProgressField.STACK_SIGNAL] = answer_requests(self._stacks)
        atexit.register(self._detach)
        if self._evidence_thread is not None:
            try:
                self._evidence_thread.start()
            except RuntimeError as error:
                log.debug("where this rank is in a hang is seen from outside only: %s", error)
        page[ProgressField.ATTACHED_AT] = time.monotonic_ns()
        monitored.register(self)
        disown_in_children(self)
        wake_monitor(self.path)

    def end(self) -> None:
        """Stop to be monitored; a page that a wrapped call writes is closed after that call."""
        monitored.unregister(self)
        keep_in_children(self)
        self.page[ProgressField.ATTACHED_AT] = 0
        self._detach()
        atexit.unregister(self._detach)
        self._is_over = True
        if not self._in_call:
            self._close()

    def reset(self) -> None:
        """Forget the signs of life so far: another iteration of a wrapped call begins."""
        self.recorder.reset()

    def call_begins(self) -> None:
        """Leave the hang detection of this rank to the monitor process of a wrapped call."""
        self._in_call = True
        if self.owner.local_monitor is not None:
            self.owner.local_monitor.pause()

    def call_ends(self) -> None:
        """Have the rank monitor detect hangs again, after a wrapped call."""
        self._in_call = False
        if self._is_over:
            self._close()
            return
        if self.page[ProgressField.STAGE] == Stage.LEFT:
            self.page[ProgressField.STAGE] = Stage.OUTSIDE
        self.reset()
        if self.owner.local_monitor is not None:
            self.owner.local_monitor.resume()
        else:
            wake_monitor(self.path)

    def supersede(self) -> LocalMonitorPort | None:
        """Yield to another client of this process; return the monitor that the process itself keeps running.

        Raises:
            RankMonitorClientError: when a wrapped call writes on the page.
        """
        if self._in_call:
            raise RankMonitorClientError(
                "this rank is monitored already, and a wrapped call is under way: use the client that was initialised "
                "before the call, or initialise one inside the wrapped function only"
            )
        local, self.owner.local_monitor = self.owner.local_monitor, None
        self.owner.shutdown_workload_monitoring()
        return local

    def disown(self) -> None:
        """In a child of `os.fork`, which is not a rank: notify nobody."""
        self.recorder.disown()
        if self._evidence_thread is not None:
            self._evidence_thread.disown()
            self._evidence_thread = None
        self.owner.local_monitor = None
        monitored.unregister(self)

    def _detach(self) -> None:
        """Record that this process exits normally, not by `os._exit`; not in a child of `os.fork`.

        The interpreter unregisters faulthandler's signals at exit: one that arrives later would end the process.
        """
        if os.getpid() == self._info.pid:
            self.page[ProgressField.DETACHED_PID] = self._info.pid
            self._hide_stacks()

    def _hide_stacks(self) -> None:
        self.page[ProgressField.STACK_SIGNAL] = 0
        if self._evidence_thread is not None:
            self._evidence_thread.close()
            self._evidence_thread = None
        if answer_requests_no_more(self._stack_signal) and self._stacks >= 0:
            os.close(self._stacks)
        self._stacks, self._stack_signal = -1, 0

    def _close(self) -> None:
        self.page.close()
        if self.owner.local_monitor is not None:
            self.owner.local_monitor.end()
            self.owner.local_monitor = None


def _evidence_thread(questions: int, page: Page) -> EvidenceThread | None:
    """Return the thread that answers on a socket, which is closed where there can be none."""
    if questions < 0:
        return None
    try:
        return EvidenceThread(questions, page)
    except OSError as error:
        os.close(questions)
        log.debug("where this rank is in a hang is seen from outside only: %s", error)
        return None


class Attachment(NamedTuple):
    """What a rank monitor gives its rank.

    Attributes:
        page: the page.
        config: the configuration.
        stacks: the pipe for the stacks of this process, owned by the caller; -1 for none.
        questions: the socket over which it is asked where it is, owned by the caller; -1 for none.
    """

    page: Page
    config: Mapping[str, Any]
    stacks: int = -1
    questions: int = -1


def get_page(path: str) -> Attachment:
    """Ask a rank monitor for the page and the configuration; it monitors this process from its next sample on.

    Raises:
        RankMonitorClientError: when it refuses, or does not answer.
    """
    try:
        for _ in range(TRIES - 1):
            with suppress(WireError):
                return _get_page(path)
        return _get_page(path)
    except (OSError, PageError) as error:
        raise RankMonitorClientError(f"the rank monitor at {path} does not answer: {error}") from None


def begin_page(page: Page, info: RankInfo) -> None:
    """Start to write on the page of a rank monitor.

    Raises:
        RankMonitorClientError: when a wrapped call of this process writes on it.
    """
    if page[ProgressField.STAGE] != Stage.OUTSIDE and page[ProgressField.ATTACHED_PID] == info.pid:
        raise RankMonitorClientError("a wrapped call of this process is under way, which writes on its page")
    page.begin_rank()


def monitor_socket(local: LocalMonitorPort | None) -> str:
    """Return the socket of the rank monitor of this process.

    Args:
        local: the monitor that the rank itself keeps running; None: a launcher's.

    Raises:
        RankMonitorClientError: when there is none.
    """
    if local is not None:
        return os.fspath(local.path)
    if (path := environment.rank_monitor_socket()) is None:
        raise RankMonitorClientError(
            "there is no rank monitor: FT_RANK_MONITOR_IPC_SOCKET is not set. Start the script with ft_launcher, "
            "or call nvrx_core.fault_tolerance.start_local_monitor()"
        )
    return path


def wake_monitor(path: str) -> None:
    """Make a monitor read the page now; it does so by itself after `workload_check_interval` at the latest."""
    with suppress(OSError), connect(path, within=TELLS_WITHIN) as connection:
        connection.send({"type": "look"})


def ask_launcher(path: str, request: WorkloadControlRequest, rank: int) -> None:
    """Send a request to the launcher.

    Raises:
        RankMonitorClientError: when it refuses, or does not answer.
    """
    action, description = request.action.name, request.description
    message = {"type": "workload_control", "action": action, "description": description, "rank": rank}
    try:
        with connect(path, within=ANSWERS_WITHIN) as connection:
            connection.send(message)
            answer, descriptors = connection.receive()
    except OSError as error:
        raise RankMonitorClientError(f"the launcher at {path} does not answer: {error}") from None
    close_all(descriptors)
    _check(answer, f"the launcher at {path}")


def _get_page(path: str) -> Attachment:
    with connect(path, within=ANSWERS_WITHIN) as connection:
        connection.send({"type": "init", "version": 1})
        answer, descriptors = connection.receive()
    with ExitStack() as failing:
        failing.callback(close_all, descriptors)
        _check(answer, f"the rank monitor at {path}")
        if not descriptors or not isinstance(answer.get("config"), dict):
            raise OSError("its answer has no page")
        page = Page.attach(descriptors[0])
        failing.pop_all()
    close_all((descriptors[0], *descriptors[3:]))
    return Attachment(page, answer["config"], *descriptors[1:3])


def _check(answer: Mapping[str, Any], who: str) -> None:
    if answer.get("type") != "ok":
        raise RankMonitorClientError(f"{who} refuses: {answer.get('cause', answer)}")


def this_rank(default: int | None = None) -> RankInfo:
    """Return this rank: that of the process group, if there is one, else that of the environment, else the default.

    Raises:
        RuntimeError: when it is unknown.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank = distributed.get_rank()
    else:
        rank = environment.rank_of_launcher(default)
    return RankInfo(rank, environment.local_rank(), socket.gethostname(), os.getpid())
