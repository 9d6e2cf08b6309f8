"""The rank's end of its rank monitor: heartbeats, sections and their timeouts."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from nvrx_core.fault_tolerance.collective import maxima
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.data import (
    HeartbeatTimeouts,
    RankInfo,
    RankMonitorClientError,
    SectionTimeouts,
    WorkloadControlRequest,
)
from nvrx_core.fault_tolerance.recorder import NotMonitored, Recorder, SignsOfLife, Silent, nanoseconds
from nvrx_core.fault_tolerance.timeouts import learn_heartbeat, learn_sections
from nvrx_core.fault_tolerance.watched import start_time
from nvrx_core.fault_tolerance.wire import Connection, WireError, connect
from nvrx_core.process.forks import disown_in_children, keep_in_children
from nvrx_core.progress import monitored
from nvrx_core.progress.page import Page, PageError, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.settings import environment

__all__ = ["LocalMonitor", "RankMonitorClient"]

ANSWERS_WITHIN: Final = 30.0
"""Seconds for the monitor's answer on entry; a replacement takes 2 s at most."""
TELLS_WITHIN: Final = 0.5
"""Seconds for telling it of new timeouts, which it would notice by itself soon."""


class LocalMonitor(Protocol):
    """A monitor that the rank keeps running itself."""

    def pause(self) -> None:
        """End the monitor's process."""

    def resume(self) -> None:
        """Start another one."""


class RankMonitorClient:
    """Tells the rank monitor of the calling process that the rank is alive.

    Heartbeats and sections are written to memory that the monitor reads: a call costs less than a microsecond, and a
    monitor that is stopped or lost holds up nothing.

    Args:
        strict_sections: refuse sections that are not in `rank_section_timeouts`. Otherwise they are measured, and have
            no timeout until one is learned.

    Attributes:
        cfg: the monitor's configuration; None before `init_workload_monitoring`.
        rank_info: this rank; None before.
        hb_timeouts: the heartbeat timeouts in force, seconds.
        section_timeouts: the section timeouts in force, seconds.
        local_monitor: what keeps the monitor running; None under a launcher that does.
    """

    def __init__(self, strict_sections: bool = False) -> None:
        self.cfg: FaultToleranceConfig | None = None
        self.rank_info: RankInfo | None = None
        self.hb_timeouts = HeartbeatTimeouts()
        self.section_timeouts = SectionTimeouts()
        self._strict = strict_sections
        self._recorder: Recorder | None = None
        self._signs: SignsOfLife = NotMonitored()
        self._loaded: Mapping[str, Any] = {}
        self.local_monitor: LocalMonitor | None = None

    @property
    def is_initialized(self) -> bool:
        """Whether the rank is monitored."""
        return self._recorder is not None

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Connect to the rank monitor, which watches this process from here on.

        Args:
            num_warmup_iters: how many first runs of section `step` have the timeout of section `warmup`; None: as
                configured.

        Raises:
            RankMonitorClientError: when it is called twice, or there is no monitor.
            RuntimeError: when the rank is unknown.
        """
        if self._recorder is not None:
            raise RankMonitorClientError("init_workload_monitoring() was called before; shut it down first")
        info = _rank_info()
        path = environment.rank_monitor_socket()
        if path is None:
            raise RankMonitorClientError(
                "there is no rank monitor: FT_RANK_MONITOR_IPC_SOCKET is not set. Start the script with ft_launcher, "
                "or call nvrx_core.fault_tolerance.start_local_monitor()"
            )
        try:
            with connect(path, within=ANSWERS_WITHIN) as connection:
                self._attach(connection, info, num_warmup_iters)
        except (OSError, PageError) as error:
            raise RankMonitorClientError(f"the rank monitor at {path} does not answer: {error}") from None

    def send_heartbeat(self) -> None:
        """Say that the rank is alive."""
        self._signs.heartbeat()

    def start_section(self, section: str) -> None:
        """Say that a section begins; sections may nest and overlap.

        Raises:
            RankMonitorClientError: when it is open already.
        """
        self._signs.open(section)

    def end_section(self, section: str) -> None:
        """Say that a section ends.

        Raises:
            RankMonitorClientError: when it is not open.
        """
        self._signs.close(section)

    def end_all_sections(self) -> None:
        """Say that all open sections end."""
        recorder = self._initialized()
        for section in recorder.open_sections():
            recorder.close(section)

    def shutdown_workload_monitoring(self) -> None:
        """Say that the rank is not to be monitored any more; may be called twice."""
        if self._recorder is not None:
            page, self._recorder, self._signs = self._recorder.page, None, NotMonitored()
            monitored.unregister(self)
            keep_in_children(self)
            page[ProgressField.ATTACHED_AT] = 0
            page.close()

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """Learn the heartbeat timeouts from the longest intervals of all ranks. A collective call.

        Args:
            skip_if_not_ready: return False where too little was measured, instead of raising.

        Returns:
            Whether new timeouts are in force.

        Raises:
            RankMonitorClientError: when fewer than two heartbeats were sent on all ranks.
        """
        recorder = self._initialized()
        measured = maxima(recorder.measured())
        if not measured.has_heartbeats():
            return _not_ready(skip_if_not_ready, "no rank has sent two heartbeats")
        self.hb_timeouts = learn_heartbeat(self.hb_timeouts, measured, self._config().safety_factor)
        self._enforce()
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Iterable[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Learn the timeouts of sections from the longest runs on all ranks. A collective call.

        Args:
            selected_sections: the names; None: all configured ones, and all that any rank has measured.
            calc_out_of_section: learn the timeout for the time without an open section, too.
            skip_if_not_ready: return False where too little was measured, instead of raising.

        Returns:
            Whether new timeouts are in force.

        Raises:
            RankMonitorClientError: when a selected section was completed on no rank.
        """
        measured = maxima(self._initialized().measured())
        completed = {name for name, longest in measured.sections.items() if longest > 0}
        everything = self.section_timeouts.section.keys() | completed
        names = sorted(everything if selected_sections is None else set(selected_sections))
        if not measured.has_sections(names, out_of_section=calc_out_of_section):
            missing = [name for name in names if name not in completed] or ["out-of-section time"]
            return _not_ready(skip_if_not_ready, f"never measured on any rank: {', '.join(missing)}")
        self.section_timeouts = learn_sections(
            self.section_timeouts, measured, self._config().safety_factor, names, out_of_section=calc_out_of_section
        )
        self._enforce()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the learned timeouts, for a checkpoint."""
        current = dict[str, Any]()
        if self.hb_timeouts.were_calculated:
            hb = self.hb_timeouts
            current["heartbeat"] = {
                "initial": hb.initial, "subsequent": hb.subsequent, "were_calculated": hb.were_calculated,
            }  # fmt: skip
        sections = self.section_timeouts
        if sections.calculated_sections or sections.is_out_of_section_calculated:
            current["section"] = {
                "section": dict(sections.section),
                "out_of_section": sections.out_of_section,
                "calculated_sections": sorted(sections.calculated_sections),
                "is_out_of_section_calculated": sections.is_out_of_section_calculated,
            }
        return {"current_timeouts": current}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take learned timeouts from a checkpoint, before or after `init_workload_monitoring`."""
        self._loaded = state.get("current_timeouts", {})
        if self._recorder is not None:
            self._use_loaded()
            self._enforce()

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Ask something of the launcher.

        Raises:
            RankMonitorClientError: when there is no launcher, or it does not answer.
        """
        path = environment.launcher_socket()
        if path is None:
            raise RankMonitorClientError(
                "there is no launcher to ask: FT_LAUNCHER_IPC_SOCKET is not set. Start the script with ft_launcher"
            )
        rank = self.rank_info or _rank_info()
        message = {
            "type": "workload_control", "action": request.action.name, "description": request.description,
            "rank": rank.global_rank,
        }  # fmt: skip
        try:
            with connect(path, within=ANSWERS_WITHIN) as connection:
                connection.send(message)
                connection.receive()
        except OSError as error:
            raise RankMonitorClientError(f"the launcher at {path} does not answer: {error}") from None

    @property
    def page(self) -> Page:
        """The progress page of this process.

        Raises:
            RankMonitorClientError: before `init_workload_monitoring`.
        """
        return self._initialized().page

    def begin_anew(self) -> None:
        """Forget the signs of life so far: another iteration of a wrapped call begins."""
        self._initialized().begin_anew()

    def call_begins(self) -> None:
        """Leave the judgement of this rank to the monitor process of a wrapped call."""
        if self.local_monitor is not None:
            self.local_monitor.pause()

    def call_ends(self) -> None:
        """Have the rank monitor judge this rank again, after a wrapped call."""
        if self.page[ProgressField.STAGE] == Stage.LEFT:
            self.page[ProgressField.STAGE] = Stage.OUTSIDE
        self.begin_anew()
        if self.local_monitor is not None:
            self.local_monitor.resume()

    def disown(self) -> None:
        """In a child of `os.fork`, which is no rank: say nothing."""
        self._signs, self._recorder = Silent(), None
        monitored.unregister(self)

    def _attach(self, connection: Connection, info: RankInfo, num_warmup_iters: int | None) -> None:
        connection.send({"type": "init", "version": 1})
        answer, descriptors = connection.receive()
        if not descriptors:
            raise WireError(answer.get("cause", "its answer has no page"))
        with os.fdopen(descriptors[0], "rb") as file:
            page = Page.attach(file.fileno())
        self.cfg, self.rank_info = FaultToleranceConfig.from_dict(answer["config"]), info
        self._begin(page, num_warmup_iters)
        connection.send({"type": "look"})
        connection.receive()

    def _begin(self, page: Page, num_warmup_iters: int | None) -> None:
        config, info = self._config(), self.rank_info
        assert info is not None
        page.begin_rank()
        self.hb_timeouts = HeartbeatTimeouts(config.initial_rank_heartbeat_timeout, config.rank_heartbeat_timeout)
        self.section_timeouts = SectionTimeouts(dict(config.rank_section_timeouts), config.rank_out_of_section_timeout)
        self._signs = self._recorder = Recorder(page)
        self._recorder.declare(self.section_timeouts.section)
        self._recorder.strict = self._strict
        self._use_loaded()
        self._write_timeouts()
        warmup = config.num_warmup_iterations if num_warmup_iters is None else num_warmup_iters
        page[ProgressField.WARMUP_STEPS] = warmup
        page[ProgressField.RANK] = info.global_rank
        page[ProgressField.ATTACHED_PID], page[ProgressField.ATTACHED_START] = info.pid, start_time(info.pid)
        page[ProgressField.ATTACHED_AT] = time.monotonic_ns()
        monitored.register(self)
        disown_in_children(self)

    def _use_loaded(self) -> None:
        if (heartbeat := self._loaded.get("heartbeat")) is not None:
            self.hb_timeouts = HeartbeatTimeouts(**heartbeat)
        if (section := self._loaded.get("section")) is not None:
            section = {**section, "section": {**self.section_timeouts.section, **section["section"]}}
            self.section_timeouts = SectionTimeouts(
                **{**section, "calculated_sections": frozenset(section["calculated_sections"])}
            )

    def _enforce(self) -> None:
        """Have the monitor use the timeouts."""
        self._write_timeouts()
        path = environment.rank_monitor_socket()
        try:
            with connect(path or "", within=TELLS_WITHIN) as connection:
                connection.send({"type": "look"})
        except OSError:  # it looks at the page by itself, after workload_check_interval at the latest
            return

    def _write_timeouts(self) -> None:
        recorder = self._initialized()
        recorder.declare(self.section_timeouts.section)
        page = recorder.page
        page[ProgressField.INITIAL_TIMEOUT] = nanoseconds(self.hb_timeouts.initial)
        page[ProgressField.HEARTBEAT_TIMEOUT] = nanoseconds(self.hb_timeouts.subsequent)
        page[ProgressField.OUT_TIMEOUT] = nanoseconds(self.section_timeouts.out_of_section)

    def _initialized(self) -> Recorder:
        if self._recorder is None:
            raise RankMonitorClientError("call init_workload_monitoring() first")
        return self._recorder

    def _config(self) -> FaultToleranceConfig:
        assert self.cfg is not None
        return self.cfg


def _not_ready(skip: bool, why: str) -> bool:
    if skip:
        return False
    raise RankMonitorClientError(f"timeouts cannot be calculated yet: {why}")


def _rank_info() -> RankInfo:
    """Return this rank: torch's, where a process group is there, else that of the environment.

    Raises:
        RuntimeError: when neither says it.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank = distributed.get_rank()
    else:
        rank = environment.rank_of_launcher()
    return RankInfo(rank, environment.local_rank(), socket.gethostname(), os.getpid())
