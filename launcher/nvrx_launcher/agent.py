"""The launcher of one node: an event loop that carries out what `NodePolicy` decides."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol

from nvrx_core import failpoint
from nvrx_core.attribution.worker_report import HUNG
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from nvrx_core.fault_tolerance.peers import HungRank, Progress
from nvrx_core.health.policy import Exclude
from nvrx_core.process.lifeline import survivor
from nvrx_core.process.signals import signal_name
from nvrx_core.settings import environment
from nvrx_launcher import departure
from nvrx_launcher.attribution import Attribution, check_attribution
from nvrx_launcher.console import Console
from nvrx_launcher.control import Control, ControlEvents
from nvrx_launcher.cycle_info import CycleInfo
from nvrx_launcher.cycle_verdict import CycleVerdicts, time_limit
from nvrx_launcher.exit_codes import USAGE
from nvrx_launcher.hang_verdicts import HangVerdicts
from nvrx_launcher.history import History
from nvrx_launcher.job_processes import JobProcesses, tagged
from nvrx_launcher.left_processes import LeftProcesses
from nvrx_launcher.log_service import LogService, Where
from nvrx_launcher.loop import EventLoop, Standstill
from nvrx_launcher.node_actions import (
    AwaitOthers,
    AwaitRound,
    EndLaunch,
    JoinAgain,
    NodeAction,
    SendMessage,
    StartWorkers,
    StopWorkers,
)
from nvrx_launcher.node_policy import NodePolicy
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.readiness import Readiness, Ready
from nvrx_launcher.rendezvous.coordination import NodeEvents
from nvrx_launcher.rendezvous.joining import join_job
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, MessageKind
from nvrx_launcher.rendezvous.parameters import MIN_HEALTHY
from nvrx_launcher.rendezvous.progress import NodeProgress
from nvrx_launcher.runtime_folder import runtime_folder
from nvrx_launcher.signals import signal_numbers, signals_as_events
from nvrx_launcher.stopping import Stopping, StopStep
from nvrx_launcher.store_host import HostedStoreLost, RoundAnswer, StoreUsed
from nvrx_launcher.stragglers import Stragglers
from nvrx_launcher.torch_events import event_recorder
from nvrx_launcher.torch_questions import processors_near_devices
from nvrx_launcher.workers.binding import bindings
from nvrx_launcher.workers.cycle_pipe import CyclePipes
from nvrx_launcher.workers.evidence import NodeEvidence
from nvrx_launcher.workers.functions import FunctionStarter
from nvrx_launcher.workers.group import WorkerExit, WorkerGroup
from nvrx_launcher.workers.log_files import TorchrunFiles
from nvrx_launcher.workers.logs_specs import PlugInFiles, load_logs_specs
from nvrx_launcher.workers.monitors import RankMonitors
from nvrx_launcher.workers.output import Logs
from nvrx_launcher.workers.process_environment import import_path
from nvrx_launcher.workers.warm_start import starter_of
from nvrx_launcher.workers.worker import Failure

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

__all__ = ["Agent"]

log = logging.getLogger("nvrx_launcher")
STORE_ANSWER_TIMEOUT: Final = "60"
"""Seconds that the ranks give the store beside the launcher: the first connection starts its program."""
STORE_LISTEN_TIMEOUT: Final = "30"
"""Seconds in which they must reach it: it listens before they are started, so one that refuses them is gone."""


class Ticking(Protocol):
    """A part of the launcher that waits for times as well."""

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""

    def tick(self, *, now: float) -> object:
        """Do what is due; `now` is what the loop's turn has returned."""


class Agent(NodeEvents, ControlEvents):
    """Starts the workers of this node, watches them, and restarts them.

    Args:
        options: the job.
        config: the settings of rank monitors.
        environ: what workers inherit.
        cleanup: releases what the launcher holds, once it has run.
        console: the launcher's streams.
        functions: starts workers that are functions; None: they are programs.
        specs: says where logs go, torch's `LogsSpecs`; None: what the options say.
        is_command: this process is a launcher and nothing else.

    Attributes:
        reason: why the job has ended.

    Raises:
        ConfigurationError: when an option cannot be carried out.
        StoreConnectionError: when nobody listens at the rendezvous endpoint in time.
        OSError: when a folder or a socket cannot be made.
    """

    def __init__(
        self, options: LaunchOptions, config: FaultToleranceConfig, environ: Mapping[str, str], cleanup: ExitStack, *,
        console: Console, functions: FunctionStarter | None = None, specs: LogsSpecs | None = None,
        is_command: bool = False,
    ) -> None:  # fmt: skip
        check_attribution(config, options.logs, hosts_rendezvous=options.hosts_rendezvous)
        self.options, self.config, self.reason, self._code = options, config, "", -1
        launch, self._given_store = uuid.uuid4().hex, environ.get("NVRX_STORE_ENDPOINT", "")  # a user's own
        self._environ = tagged(environ, launch)
        self._events = event_recorder(options)
        specs = load_logs_specs(options) if options.logs_specs else specs
        bound = bindings(options, config.numa_bind_strict, processors_near_devices)
        if functions is not None:
            functions.bound, functions.exits = bound, config.install_exception_hook
        self._loop, self._standstill = EventLoop(), Standstill(now=math.inf)
        self._readiness = Readiness.of(self._loop, options, config, environ)
        self._cycle_info = CycleInfo(
            config.cycle_info_dir, options.run_id, options.logs.prefix, environ, max_nodes=options.max_nodes
        )
        self._stopping = Stopping(options.workers_kill_timeout)
        self._awaited, self._awaits_until = -1, math.inf
        self._hung, self._started, self._failure_lines = dict[int, HungRank](), math.inf, list[str]()
        self._policy = NodePolicy(
            options.workers,
            workers_stop_timeout=options.workers_stop_timeout, term_timeout=options.term_timeout,
            min_healthy=options.restart_policy == MIN_HEALTHY,
            retries_misuse=config.retry_usage_errors or not options.max_restarts,
        )  # fmt: skip
        cleanup.callback(self._loop.close)
        cleanup.callback(self._readiness.close)
        cleanup.callback(self._cycle_info.close)
        self._history = History(environment.events_directory())
        cleanup.callback(self._history.close)
        self._history.launched(options.workers, options.run_id)
        folder = runtime_folder(cleanup)
        failpoint.hit("guardian-spawn", -1)
        self._processes = JobProcesses(self._loop, launch, folder, is_command=is_command)
        cleanup.callback(self._processes.close)
        self._processes.start()
        self._left = LeftProcesses(
            self._loop, self._processes, options.workers_stop_timeout, names=config.check_remaining_processes
        )
        self._control = Control(self._loop, folder / "launcher.ipc", self)
        cleanup.callback(self._control.close)
        self._monitors = RankMonitors(self._loop, config, self._control.path, options, history=self._history)
        cleanup.callback(self._monitors.close)
        signals = [*signal_numbers(options.signals), *([signal.SIGCHLD] if is_command else [])]
        until_left = cleanup.enter_context(ExitStack())  # released after the job is left, for which the loop turns
        self._coordination = join_job(  # signals still end it
            options, self._loop, cleanup, self, config=config, iteration=lambda: self._readiness.iteration,
            stops_within=options.stops_within + self._readiness.timeout,
        )  # fmt: skip
        where = self._where()
        self._cycle_logs = LogService(options.logs, self._loop, where, environ)
        cleanup.callback(self._cycle_logs.close)
        reader, read = until_left.enter_context(signals_as_events(signals, self._signalled))
        self._loop.watch(reader, read)
        until_left.callback(self._loop.forget, reader)
        self._complete_environment()
        files = TorchrunFiles(options, folder) if specs is None else PlugInFiles(specs)
        starter, self._standbys = starter_of(
            options, config, self._environ, loop=self._loop, bound=bound, functions=functions
        )
        cleanup.callback(self._standbys.close)
        pipes = CyclePipes(self._cycle_logs) if options.logs.prefix else None
        logs = Logs(options, files, self._environ, console, pipes=pipes)
        cleanup.callback(logs.close)
        self._workers = WorkerGroup(
            options, self._loop, logs, starter=starter, is_monitored=self._monitors.is_monitored,
            spares_rest=is_command, names_rest=config.check_remaining_processes,
        )  # fmt: skip
        cleanup.callback(self._workers.close)
        self._cycle_verdicts = CycleVerdicts(
            self._history, self._coordination, self._workers, cycle_log=self._cycle_logs, host=socket.gethostname(),
            events=environment.events_directory(), time_limit=time_limit(environ), ends_job=where.is_host,
        )  # fmt: skip
        cleanup.callback(self._cycle_verdicts.close)
        self._attribution = Attribution(
            config, options.logs, self._loop, self._history, verdicts=self._cycle_verdicts, where=where, environ=environ
        )
        cleanup.callback(self._attribution.close)
        self._stragglers = Stragglers(config, self._monitors, self._coordination, self._history)
        self._evidence = NodeEvidence(self._loop, self._monitors.sockets)
        cleanup.callback(self._evidence.close)
        self._hang_verdicts = HangVerdicts(
            self._evidence, self._coordination, self._history, self._cycle_verdicts, is_on=config.hang_verdict
        )
        self._parts: tuple[Ticking, ...] = (
            self._coordination, self._coordination.store, self._standbys, self._processes, self._left, self._monitors,
            self._workers, self._readiness, self._cycle_logs, self._cycle_verdicts, self._stragglers, self._evidence,
            self._hang_verdicts, self._attribution,
        )  # fmt: skip

    def _where(self) -> Where:
        options, is_alone = self.options, self.options.max_nodes == 1
        return Where(
            node=f"{socket.gethostname()}:{os.getpid()}", host="127.0.0.1" if is_alone else options.endpoint[0],
            is_host=is_alone or self._coordination.hosts_store, nodes=options.max_nodes, job=options.run_id,
        )  # fmt: skip

    def _complete_environment(self) -> None:
        """Add to what workers inherit: where they find this launcher, the bounds of the store, the compat package."""
        self._environ |= self._control.environment() | self._cycle_info.environment()
        self._environ.setdefault("NVRX_STORE_ANSWERS_WITHIN", STORE_ANSWER_TIMEOUT)
        if not self._given_store:
            self._environ.setdefault("NVRX_STORE_LISTENS_WITHIN", STORE_LISTEN_TIMEOUT)
        if self.config.compat_names:
            self._environ |= import_path(self.options, self._environ, sys.executable)

    def release(self) -> None:
        """End the threads that are left after the cleanup, in a process that continues.

        Its interpreter would end while one waits in torch, which aborts it.
        """
        self._coordination.release()

    def run(self) -> int:
        """Run the job; returns the exit code.

        Raises:
            OSError: when a process cannot be started.
        """
        self._coordination.join()
        self._monitors.start()
        while self._code < 0 or (self._code == 0 and self._left.is_any) or self._readiness.is_excluding:
            due = min(self._stopping.deadline, self._awaits_until, *(part.deadline for part in self._parts))
            asked = time.monotonic()
            now = self._loop.turn(due)
            self._recognise_pause(due, asked, now)
            self._handle_events()
            for part in self._parts:
                part.tick(now=now)
            if now >= self._awaits_until:
                self._awaits_until = math.inf
                self._carry_out(self._policy.waited(self._awaited))
            self._stop_further(now)
            self._handle_events()
        return self._code

    def _handle_events(self) -> None:
        """Handle what has become of the store of in-process restart, the workers and this node, and what is advised."""
        for event in self._coordination.store.events():
            match event:
                case StoreUsed():
                    self._coordination.store_used()
                case HostedStoreLost(reason):
                    log.error("%s: the workers are started again, with another store", reason)
                    self._history.store_lost(reason)
                    self._coordination.tell(MessageKind.STORE_LOST, self._history.cycle, reason)
                case RoundAnswer(asked_in, rank, is_entered):
                    if is_entered and asked_in == self._policy.cycle:
                        log.warning("in-process restart continues without rank %d", rank, extra={"rank": rank})
                        self._history.goes_on_without(rank)
                        self._cycle_verdicts.goes_on_without(rank)
                    self._carry_out(self._policy.round_answered(asked_in, rank, is_entered=is_entered))
        for worker in self._workers.exits():
            if worker.left:
                rank = self._policy.rank_of(worker.local_rank)
                log.warning("rank %d has left processes, which are killed: %s", rank, worker.left)
            self._exited(worker)
        for advised in self._attribution.events():
            self._coordination.tell(MessageKind.STOP, self._policy.cycle, advised.reason)
        for news in self._readiness.events():
            match news:
                case Ready(cycle, reason):
                    self._coordination.tell(MessageKind.READY, cycle, reason, self._cycle_verdicts.records())
                case Exclude(reason):
                    log.error("this node is unhealthy and takes no part in the job: %s", reason)
                    self._exclude(f"{socket.gethostname()} is unhealthy: {reason}")

    def _recognise_pause(self, due: float, asked: float, now: float) -> None:
        pause = self._standstill.turned(due, asked=asked, now=now)
        if pause is None:
            return
        self._coordination.paused(now=now)
        if pause.is_worth_a_line:
            log.warning("%s", pause)

    @property
    def position(self) -> dict[str, int]:
        """The number of this node and of its cycle, as far as they are known."""
        found = {"node": self._policy.node, "cycle": self._policy.cycle}
        return {name: number for name, number in found.items() if number >= 0}

    @property
    def failures(self) -> list[Failure]:
        """The workers of this node that have failed in the last cycle, as they were noticed."""
        return list(self._workers.failures.values())

    @property
    def ranks(self) -> list[int]:
        """The ranks of this node's workers in the last cycle; none of a node that was a spare."""
        place = self._workers.placement
        return [] if place is None else [place.first_rank + number for number in range(self.options.workers)]

    def _inherited(self, local_rank: int) -> Mapping[str, str]:
        """Return what a worker inherits."""
        return {**self._environ, **self._monitors.environment(local_rank)}

    def _carry_out(self, actions: tuple[NodeAction, ...]) -> None:
        for action in actions:
            match action:
                case StartWorkers():
                    self._start(action)
                case StopWorkers(signum, grace, _, reason):
                    why = self._beyond_failures(reason) or f"cycle {self._policy.cycle} ends here"
                    log.warning("%s: workers are sent %s", why, signal_name(signum))
                    self._stopping.signalled(grace, now=time.monotonic())
                    self._workers.send(signum)
                    failpoint.hit("term-kill-gap", self._policy.cycle)
                    self._standbys.pause()
                case SendMessage(MessageKind.READY, cycle, reason):
                    self._left.kill()
                    self._readiness.begin(cycle, reason, is_first=self._workers.placement is None)
                case SendMessage(kind, cycle, reason):
                    records: tuple[str, ...] = ()
                    if kind is MessageKind.DONE:
                        self._left.workers_done()
                    elif kind is MessageKind.LEFT:
                        self._readiness.left()
                        records = self._cycle_verdicts.records()
                    self._coordination.tell(kind, cycle, reason, records)
                case JoinAgain():
                    self._left.kill()
                    self._coordination.join_again()
                case AwaitRound(rank):  # the wrapped call in which a worker was may handle its exit
                    self._coordination.store.ask(rank, self._policy.cycle, self.config.inprocess_grace)
                case AwaitOthers(cycle, seconds):
                    self._awaited, self._awaits_until = cycle, time.monotonic() + seconds
                case EndLaunch(code, _, reason):
                    self._cycle_verdicts.finish()
                    self._attribution.finish(code)
                    log.log(logging.ERROR if code else logging.INFO, "the job ends with code %d: %s", code, reason)
                    self._history.ended(code, reason)
                    self._cycle_info.ended()
                    failpoint.hit("exit-code-before", self._policy.cycle)
                    self._code, self.reason = code, reason
                    self._events.ended(code, self._workers.failures)

    def _start(self, action: StartWorkers) -> None:
        failpoint.hit("cycle-begin", action.decision.cycle)
        log.info("cycle %d: %s", action.decision.cycle, action.reason)
        self._started = time.monotonic()
        self._stopping.ended()
        self._hung.clear()
        self._failure_lines.clear()
        self._left.kill()
        self._processes.begin_cycle()
        self._monitors.begin_cycle()
        self._environ["NVRX_STORE_ENDPOINT"] = self._given_store or self._coordination.store.endpoint
        workers = self._workers.start(action, self._inherited)
        self._standstill.did("starting the workers", time.monotonic() - self._started)
        self._history.workers_started(action)
        if self._workers.placement is not None:
            self._events.started(self._workers.placement, workers)
        self._standbys.settle(self._inherited)

    def joined(self, node: int) -> None:
        """Record this node's number."""
        self._history.joined(node)
        self._hang_verdicts.joined(node)
        failpoint.hit("rendezvous-join", self._policy.cycle)
        self._standbys.settle(self._inherited)
        self._carry_out(self._policy.joined(node))

    def decided(self, decision: Decision) -> None:
        """Carry out a decision for all nodes."""
        self._history.decided(decision)
        self._cycle_verdicts.decided(decision, now=time.monotonic())
        runs_coordinator = self._coordination.runs_coordinator
        self._attribution.decided(decision, self._cycle_logs, is_coordinator=runs_coordinator)
        self._cycle_info.decided(decision, self._policy.node)
        self._stragglers.decided(decision, now=time.monotonic())
        self._hang_verdicts.decided(decision, now=time.monotonic())
        if decision.kind is DecisionKind.END:
            failpoint.hit("rendezvous-close", self._policy.cycle)
        if decision.kind is DecisionKind.RUN:
            self._coordination.store.begin_cycle(decision.store)
        actions = self._policy.decided(decision)
        is_news = decision.kind is DecisionKind.STOP and not any(isinstance(each, StopWorkers) for each in actions)
        if is_news and (why := self._beyond_failures(decision.reason)):
            log.info("cycle %d ends on all nodes: %s", decision.cycle, why)
        self._carry_out(actions)
        self._cycle_verdicts.make()

    def lease_expired(self, reason: str) -> None:
        """Handle that the lease cannot be renewed."""
        self._carry_out(self._policy.lease_expired(reason))

    def coordinator_lost(self, code: int, reason: str) -> None:
        """Handle the loss of the coordinator."""
        self._cycle_verdicts.coordinator_lost(self._coordination.coordinator, reason, node=self._policy.node)
        self._carry_out(self._policy.leave(departure.coordination_lost(code, reason)))

    def _signalled(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            self._processes.reap()
            return
        if self._code == 0:  # what the workers have left is awaited
            self._left.kill()
            return
        failpoint.hit("signal-received", self._policy.cycle)
        self._cycle_verdicts.stopped(signum, now=time.monotonic())
        self._cycle_verdicts.make()
        self._attribution.signalled()
        self._carry_out(self._policy.signalled(signum))

    def _exited(self, worker: WorkerExit) -> None:
        local_rank, code, report = worker.local_rank, worker.code, worker.report
        if not self._workers.running():
            self._stopping.ended()
        in_process = self._coordination.store.is_in_use
        is_failure = code != 0 and self._policy.is_at_work(local_rank)
        if code == 0 and self.config.rank_termination_signal is signal.SIGKILL:  # another one may be why it has exited
            self._is_not_hung(self._policy.rank_of(local_rank), "has exited in order")
        if is_failure:
            self._control.catch_up()  # its monitor has said before why it ends it
        no_progress = not self._monitors.may_have_stepped(time.monotonic() - self._started)
        if is_failure:
            rank = self._policy.rank_of(local_rank)
            report = self._log_failure(rank, report)
            self._history.worker_failed(rank, code, report, in_process=in_process)
            self._cycle_verdicts.failed(rank, report)
        self._carry_out(
            self._policy.worker_exited(
                local_rank,
                code,
                report,
                in_process=in_process,
                no_progress=no_progress,
                is_misuse=no_progress and (code == USAGE or worker.cannot_start),
            )
        )

    def _log_failure(self, rank: int, report: str) -> str:
        """Log the failure of a worker, the one time that it is an error; return its line, with what caused it."""
        how, _, trace = report.partition("\n")
        hung = self._hung.pop(rank, None)
        line = how if hung is None else f"{how}{HUNG}{hung.reason}"
        log.error("%s", f"{line}\n{trace}" if trace else line, extra={"rank": rank})
        self._failure_lines.append(line)
        return line

    def _beyond_failures(self, reason: str) -> str:
        """Return what a reason adds to a failure that this launcher has logged."""
        told = next((line for line in self._failure_lines if line in reason), None)
        return reason if told is None else reason.partition(told)[2].lstrip(";, ")

    def hung(self, report: HungRank, answer: Callable[[], None]) -> None:
        """Handle that a monitor is about to end its rank; a rank that is being stopped anyway is not to blame."""
        if self._policy.is_stopping:
            answer()
            return
        self._hung[report.rank] = report
        self._history.rank_hung(report)
        self._hang_verdicts.suspected(answer, now=time.monotonic())

    def evidence_received(self, cycle: int, hang: str) -> None:
        """Judge a hang by what the ranks of all nodes show."""
        self._hang_verdicts.evidence_received(cycle, hang, now=time.monotonic())

    def recovered(self, rank: int) -> None:
        """Handle that a rank has gone on before its monitor has ended it: what ends it later is something else."""
        self._is_not_hung(rank, "goes on")

    def _is_not_hung(self, rank: int, why: str) -> None:
        if (report := self._hung.pop(rank, None)) is not None:
            log.warning("rank %d %s, and is not ended as hung", rank, why, extra={"rank": rank})
            self._history.recovered(report, why)
            if not self._hung:
                self._cycle_verdicts.recovered()

    def asked_for_progress(self, answer: Callable[[Sequence[Progress]], None]) -> None:
        """Answer with the progress of the slowest ranks of other nodes."""
        self._coordination.ask_progress(answer)

    def progress(self) -> NodeProgress:
        """Return the progress of the ranks of this node."""
        return self._policy.cycle, self._monitors.progress()

    def requested(self, rank: int, request: WorkloadControlRequest) -> None:
        """Handle the request of a rank."""
        asked = request.action.name
        log.warning("rank %d asks for %s: %s", rank, asked, request.description, extra={"rank": rank})
        self._history.requested(rank, request)
        reason = f"rank {rank} has asked for {request.action.name}: {request.description}"
        if request.action is WorkloadAction.ShutdownWorkload:
            self._coordination.tell(MessageKind.STOP, self._policy.cycle, reason)
        elif request.action is WorkloadAction.ExcludeThisNode:
            self._exclude(reason)

    def _exclude(self, reason: str) -> None:
        """Leave the job for good; a launcher that the others need stays, without workers."""
        is_needed = self._coordination.hosts_store
        self._readiness.excluded(reason)
        self._carry_out(self._policy.leave(departure.excluded(reason, is_needed=is_needed)))

    def _stop_further(self, now: float) -> None:
        """Kill the workers that a signal has not ended; give up those that SIGKILL has not ended."""
        match self._stopping.tick(now=now):
            case StopStep.KILL:
                log.warning("local ranks %s did not end in time and are killed", self._workers.running())
                self._workers.send(signal.SIGKILL)
            case StopStep.GIVE_UP:
                why = "; ".join(map(survivor, self._workers.pids()))
                is_needed = self._coordination.hosts_store
                then = "stays because it hosts the rendezvous, and starts nothing" if is_needed else "leaves the job"
                log.error("%s: this launcher %s", why, then)
                self._carry_out(self._policy.survived(departure.survived(why, is_needed=is_needed)))
            case StopStep.ASK | None:  # workers have been sent a signal before
                pass
