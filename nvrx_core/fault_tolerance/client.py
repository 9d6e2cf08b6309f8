"""The rank's end of its rank monitor: heartbeats, sections and their timeouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from nvrx_core.fault_tolerance.attachment import (
    AttachedRank,
    LocalMonitorPort,
    ask_launcher,
    begin_page,
    get_page,
    monitor_socket,
    this_rank,
    wake_monitor,
)
from nvrx_core.fault_tolerance.collective import maxima
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.data import (
    HeartbeatTimeouts,
    RankInfo,
    RankMonitorClientError,
    SectionTimeouts,
    WorkloadControlRequest,
)
from nvrx_core.fault_tolerance.rank_timeouts import RankTimeouts
from nvrx_core.fault_tolerance.recorder import NotMonitored, ProgressRecorder, Recorder
from nvrx_core.fault_tolerance.timeouts import Measured
from nvrx_core.fault_tolerance.wire import close_all
from nvrx_core.process.native_threads import await_at_exit
from nvrx_core.progress import monitored
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.settings import environment

__all__ = ["RankMonitorClient"]


class RankMonitorClient:
    """The rank's end of its rank monitor: sends heartbeats, opens and closes sections, learns timeouts.

    Heartbeats and sections are written to memory that the monitor reads. Such a call costs about a microsecond, takes
    no lock and cannot block; a monitor that is stopped or lost does not delay it. They are for one thread at a time.

    Args:
        strict_sections: raise for a section that is not in `rank_section_timeouts`. Otherwise it is measured, and has
            no timeout until one is learned.
        least_learned: seconds from which a learned timeout is enforced; a shorter one counts as this. None: the setting
            `min_learned_timeout`.

    Attributes:
        cfg: the monitor's configuration; None before `init_workload_monitoring`.
        rank_info: this rank; None before `init_workload_monitoring`.
        local_monitor: keeps the monitor running, after `start_local_monitor`; None under a launcher that does.
    """

    def __init__(self, strict_sections: bool = False, *, least_learned: float | None = None) -> None:
        self.least_learned = least_learned
        self.cfg: FaultToleranceConfig | None = None
        self.rank_info: RankInfo | None = None
        self.local_monitor: LocalMonitorPort | None = None
        self._strict = strict_sections
        self._rank: AttachedRank | None = None
        self._recorder: ProgressRecorder = NotMonitored()
        self._timeouts = RankTimeouts()

    @property
    def is_initialized(self) -> bool:
        """Whether the rank is watched: after `init_workload_monitoring`, until `shutdown_workload_monitoring`."""
        return self._rank is not None

    @property
    def page(self) -> Page:
        """The progress page of this process.

        Raises:
            RankMonitorClientError: before `init_workload_monitoring`.
        """
        return self._recorder.page

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts:
        """The heartbeat timeouts, in seconds: learned ones, else those of the configuration."""
        return self._timeouts.heartbeat

    @property
    def section_timeouts(self) -> SectionTimeouts:
        """The section timeouts, in seconds: learned ones, else those of the configuration."""
        return self._timeouts.sections

    @property
    def timeouts_calc(self) -> Measured:
        """The longest intervals that this rank has measured so far, in seconds; timeouts are learned from them.

        Raises:
            RankMonitorClientError: before `init_workload_monitoring`.
        """
        return self._recorder.measured()

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Connect to the rank monitor of this process, which watches it from here on.

        The monitor is the one at `FT_RANK_MONITOR_IPC_SOCKET`, which a launcher sets. The rank is that of the default
        process group, else that of the environment. Another client of this process is shut down.

        Args:
            num_warmup_iters: how many of the first runs of section `step` have the timeout of section `warmup`; None:
                `num_warmup_iterations` of the configuration.

        Raises:
            RankMonitorClientError: when this client is initialised already, there is no monitor, it does not answer or
                watches another process, a name in `rank_section_timeouts` is not possible, or a wrapped call goes on
                that has begun with another client.
            RuntimeError: when the rank is unknown.
        """
        if self._rank is not None:
            raise RankMonitorClientError("init_workload_monitoring() was called before; shut it down first")
        self.rank_info = this_rank(None if self.local_monitor is None else 0)
        if isinstance(earlier := monitored.current(), AttachedRank):
            self.local_monitor = earlier.supersede() or self.local_monitor
        path = monitor_socket(self.local_monitor)
        page, config, stacks, questions = get_page(path)
        with ExitStack() as failing:
            failing.callback(page.close)
            failing.callback(close_all, [each for each in (stacks, questions) if each >= 0])
            begin_page(page, self.rank_info)
            recorder = self._configure(page, FaultToleranceConfig.from_dict(config), num_warmup_iters)
            self._rank = AttachedRank(self, path, recorder, self.rank_info, stacks=stacks, questions=questions)
            failing.pop_all()
        self._recorder = self._rank.recorder
        await_at_exit()
        self._rank.begin()

    def send_heartbeat(self) -> None:
        """Send a heartbeat: the rank is alive.

        From the first one on, each must come within `rank_heartbeat_timeout` of the one before.

        Raises:
            RankMonitorClientError: before `init_workload_monitoring`.
        """
        self._recorder.heartbeat()

    def start_section(self, section: str) -> None:
        """Open a section. Sections may nest and overlap.

        Args:
            section: its name, 1 to 96 bytes of UTF-8; a rank has at most 64 different ones.

        Raises:
            RankMonitorClientError: when it is open already, the name is not possible, there is no room for one more,
                or it is not configured and `strict_sections` is set; before `init_workload_monitoring`.
        """
        self._recorder.open(section)

    def end_section(self, section: str) -> None:
        """Close a section.

        Args:
            section: its name.

        Raises:
            RankMonitorClientError: when it is not open; before `init_workload_monitoring`.
        """
        self._recorder.close(section)

    def abandon_section(self, section: str) -> None:
        """Close a section that an exception or a restart has ended: no timeout is learned from its duration.

        Args:
            section: its name.

        Raises:
            RankMonitorClientError: when it is not open; before `init_workload_monitoring`.
        """
        self._recorder.abandon(section)

    def end_all_sections(self) -> None:
        """Close all open sections, if there are any."""
        for section in self._recorder.open_sections():
            self._recorder.close(section)

    def shutdown_workload_monitoring(self) -> None:
        """Stop monitoring: no timeout applies to this process any more. A second call does nothing.

        A monitor that `start_local_monitor` has started ends. That of a launcher waits for the next process.
        """
        if self._rank is not None:
            rank, self._rank, self._recorder = self._rank, None, NotMonitored()
            rank.end()

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """Learn the heartbeat timeouts: the longest intervals on any rank, times `safety_factor`.

        A collective call: all ranks of the default process group make it, over gloo or nccl. Without a process group,
        the intervals of this rank count. New timeouts replace configured ones; with learned ones, the mean is taken.

        Args:
            skip_if_not_ready: return False when too little was measured, instead of raising.

        Returns:
            Whether new timeouts are in force.

        Raises:
            RankMonitorClientError: when no rank has sent two heartbeats; before `init_workload_monitoring`.
            RuntimeError: when the backend of the process group is neither gloo nor nccl.
        """
        measured = maxima(self.timeouts_calc)
        if not measured.has_heartbeats():
            return _not_ready(skip_if_not_ready, "no rank has sent two heartbeats")
        self._timeouts.learn_heartbeat(measured)
        self._enforce()
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Iterable[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Learn the timeouts of sections: the longest run on any rank, times `safety_factor`.

        A collective call, as `calculate_and_set_hb_timeouts` is. A section that is open has not been measured.

        Args:
            selected_sections: the names, the same on all ranks; None: all configured sections, and all that any rank
                has measured. Other sections keep their timeouts.
            calc_out_of_section: learn the timeout for the time without an open section as well.
            skip_if_not_ready: return False when too little was measured, instead of raising.

        Returns:
            Whether new timeouts are in force.

        Raises:
            RankMonitorClientError: when no rank has completed a selected section; before `init_workload_monitoring`.
            RuntimeError: when the backend of the process group is neither gloo nor nccl.
        """
        measured = maxima(self.timeouts_calc)
        completed = {name for name, longest in measured.sections.items() if longest > 0}
        everything = self.section_timeouts.section.keys() | completed
        names = sorted(everything if selected_sections is None else set(selected_sections))
        if not measured.has_sections(names, out_of_section=calc_out_of_section):
            missing = [name for name in names if name not in completed] or ["out-of-section time"]
            return _not_ready(skip_if_not_ready, f"never measured on any rank: {', '.join(missing)}")
        self._timeouts.learn_sections(measured, names, out_of_section=calc_out_of_section)
        self._enforce()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the learned timeouts, for a checkpoint: a dict of plain values, equal on all ranks."""
        return self._timeouts.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load learned timeouts from a checkpoint, before or after `init_workload_monitoring`.

        They replace configured ones. Timeouts in the state that were not learned are ignored: the present configuration
        applies to them.

        Args:
            state: the result of `state_dict`.

        Raises:
            RankMonitorClientError: when it is not such a result.
        """
        self._timeouts.load(state)
        self._enforce()

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Send a request to the launcher, and wait until it has received it.

        May be called without `init_workload_monitoring`.

        Args:
            request: the action, and its reason.

        Raises:
            RankMonitorClientError: when there is no launcher to ask (`FT_LAUNCHER_IPC_SOCKET` is not set), or it does
                not answer within 30 s, or refuses.
        """
        path = environment.launcher_socket()
        if path is None:
            raise RankMonitorClientError(
                "there is no launcher to ask: FT_LAUNCHER_IPC_SOCKET is not set. Start the script with ft_launcher"
            )
        ask_launcher(path, request, (self.rank_info or this_rank()).global_rank)

    def _configure(self, page: Page, config: FaultToleranceConfig, num_warmup_iters: int | None) -> Recorder:
        """Write the configuration on the page, before its monitor monitors this process."""
        self.cfg = config
        self._timeouts.configure(
            HeartbeatTimeouts(config.initial_rank_heartbeat_timeout, config.rank_heartbeat_timeout),
            SectionTimeouts(dict(config.rank_section_timeouts), config.rank_out_of_section_timeout),
            safety_factor=config.safety_factor,
        )
        warmup = config.num_warmup_iterations if num_warmup_iters is None else num_warmup_iters
        page[ProgressField.WARMUP_STEPS] = warmup
        recorder = Recorder(page)
        recorder.enforce(self.hb_timeouts, self.section_timeouts, self._least(config))
        recorder.strict = self._strict
        return recorder

    def _enforce(self) -> None:
        """Make the monitor enforce the timeouts, if there is one."""
        if self._rank is not None and self.cfg is not None:
            self._rank.recorder.enforce(self.hb_timeouts, self.section_timeouts, self._least(self.cfg))
            wake_monitor(self._rank.path)

    def _least(self, config: FaultToleranceConfig) -> float:
        return config.min_learned_timeout if self.least_learned is None else self.least_learned


def _not_ready(skip: bool, why: str) -> bool:
    if skip:
        return False
    raise RankMonitorClientError(f"timeouts cannot be calculated yet: {why}")
