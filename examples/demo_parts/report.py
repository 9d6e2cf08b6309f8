"""What the runs come to: a table of the faults, a line for each run, and what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo_parts.durations import duration
from demo_parts.run_history import Injection, Recovery, RunHistory
from demo_parts.runs import TorchrunRun
from demo_parts.schedule import CUT_OFF, HARD_TIMEOUT, KINDS, SOFT_TIMEOUT, PlannedFault
from demo_parts.view import measured

__all__ = ["Outcome", "aligned", "failures_of", "fault_table", "legend", "run_table"]


@dataclass(frozen=True)
class Outcome:
    """A run that is over.

    Attributes:
        name: of the run.
        history: what happened.
        failures: what is not as it should be, in sentences.
    """

    name: str
    history: RunHistory
    failures: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """From the first step to the last."""
        points = self.history.points
        return points[-1].at - points[0].at if points else 0.0


def fault_table(history: RunHistory, torchrun: RunHistory | None) -> list[str]:
    """A row for each fault: what it cost under nvrx, phase by phase, and under torchrun; and the steps of both."""
    heads = ["fault", "rank", "step", "noticed", "back in", "next step", "process", *(["torchrun"] if torchrun else [])]
    heads.append("again")
    rows = [heads]
    for injection in history.injections:
        other = [_under_torchrun(torchrun, injection)] if torchrun else []
        recovery = history.recovery_after(injection)
        fault = [KINDS[injection.kind].name, str(injection.rank), str(injection.step)]
        rows.append([*fault, *_cells(recovery), *other, _repeated(recovery, torchrun, injection)])
    unplanned = [recovery for recovery in history.recoveries if recovery.injection is None]
    rows += [[*_unplanned(each), *([""] if torchrun else []), str(each.repeated)] for each in unplanned]
    return aligned(rows, left=(0, 6))


def legend(torchrun: RunHistory | None) -> Iterator[str]:
    """What the columns are, a line for each."""
    yield "each time: from the fault (a hang: its last sign of life) to the slowest rank, by one clock, until"
    timeouts = f"'{SOFT_TIMEOUT:g} s +': after the soft timeout, '{HARD_TIMEOUT:g} s +': after the hard one"
    yield f"noticed    it knows of the fault; {timeouts}"
    yield "back in    it is in the training function again, in the same process"
    yield "next step  it has done its first step"
    checkpoint = " / torchrun from the last checkpoint" if torchrun else ""
    yield f"again      steps done once more: nvrx goes on from memory{checkpoint}"
    if torchrun:
        restarts = f"--max-restarts={TorchrunRun.MAX_RESTARTS}"
        yield f"torchrun   the same next step under `torchrun {restarts}`, in new processes"
        yield f"           with {TorchrunRun.VARIABLE}=1: without it torch 2.13 often fails to restart"
        if torchrun.cut_off:
            hung = f"hung: the demo killed the process after {CUT_OFF:g} s; torch would have waited 30 minutes"
            yield f"           {hung}"


def run_table(outcomes: Sequence[Outcome]) -> list[str]:
    """A row for each run: how long it took, and whether its weights are those of the first, bit for bit."""
    heads = ["", "took", "stood still", "steps repeated", "loss", "ranks", "SHA-256 of the weights"]
    return aligned([heads, *(_run(outcome, outcomes[0]) for outcome in outcomes)], left=(0, 6))


def failures_of(
    history: RunHistory, faults: Sequence[PlannedFault], exit_codes: Sequence[int | None], logs: Path
) -> Iterator[str]:
    """What is not as the schedule foresees it, in sentences."""
    for fault in faults:
        if missing := _missing(history, fault):
            yield f"{fault.kind} on rank {fault.rank} at step {fault.step} {missing}"
    lost = {injection.initial_rank for injection in history.injections if KINDS[injection.kind].lethal}
    for rank, code in enumerate(exit_codes):
        if rank not in lost and (code != 0 or rank not in history.finished):
            end = "was still there" if code is None else f"ended with code {code}"
            yield f"process {rank} {end} and did not finish the training; see {logs / f'rank-{rank}.log'}"


def _missing(history: RunHistory, fault: PlannedFault) -> str:
    """What a scheduled fault lacks; nothing when it was injected and answered as it should be."""
    injection = next((injection for injection in history.injections if injection.is_planned(fault)), None)
    if injection is None:
        return "was not injected"
    recovery = history.recovery_after(injection)
    if recovery is None:
        return "was followed by no restart"
    if (injection.initial_rank in recovery.lost) != KINDS[fault.kind].lethal:
        expected = "ended" if KINDS[fault.kind].lethal else "spared"
        return f"should have {expected} its process; lost are {list(recovery.lost)}"
    return ""


def _cells(recovery: Recovery | None) -> list[str]:
    if recovery is None or recovery.noticed is None or recovery.entered is None:
        return ["", "", "no restart", ""]
    times = (recovery.noticed, recovery.entered, recovery.resumed)
    return [*(measured(seconds, recovery) for seconds in times), _process(recovery)]


def _repeated(recovery: Recovery | None, torchrun: RunHistory | None, injection: Injection) -> str:
    """How many steps were done again after a fault: under nvrx, and under torchrun."""
    recoveries = [recovery, *([_same(torchrun, injection)[1]] if torchrun else [])]
    return " / ".join("-" if each is None else str(each.repeated) for each in recoveries)


def _process(recovery: Recovery) -> str:
    """What became of the faulty process, and of its rank."""
    if not recovery.lost:
        return "kept"
    if recovery.took_over:
        return f"→ spare {', '.join(map(str, recovery.took_over))}"
    return f"lost, {recovery.world_size} left"


def _unplanned(recovery: Recovery) -> list[str]:
    """A restart that the schedule did not ask for is named by its cause."""
    return [recovery.name, str(recovery.cause.get("rank", "?")), "", *_cells(recovery)]


def _same(torchrun: RunHistory, injection: Injection) -> tuple[Injection | None, Recovery | None]:
    """The same fault under torchrun, and how the run went on after it."""
    planned = injection.kind, injection.step
    same = next((other for other in torchrun.injections if (other.kind, other.step) == planned), None)
    return same, None if same is None else torchrun.recovery_after(same)


def _under_torchrun(history: RunHistory, injection: Injection) -> str:
    """What the same fault cost there: recovered, hung first, crashed again, or never recovered."""
    same, recovery = _same(history, injection)
    if same is None:
        return "never came to it"
    if recovery is None:
        return f"{'hung' if history.silent else 'gave up'} after {duration(history.over - same.at)}"
    hung = "hung, " if same in history.cut_off else ""
    attempts = recovery.iteration - same.iteration
    again = f", {attempts} attempts" if attempts > 1 else ""
    return f"{hung}{duration(recovery.resumed)}{again}"


def _run(outcome: Outcome, first: Outcome) -> list[str]:
    history = outcome.history
    if not history.points:
        return [outcome.name, "never began", "", "", "", "", ""]
    still = sum(recovery.resumed for recovery in history.recoveries)
    repeated = sum(recovery.repeated for recovery in history.recoveries)
    loss = f"{history.points[-1].loss:.3f}"
    return [
        outcome.name, f"{outcome.seconds:.1f} s", f"{still:.1f} s", str(repeated), loss, str(len(history.places)),
        _weights(outcome, first),
    ]  # fmt: skip


def _weights(outcome: Outcome, first: Outcome) -> str:
    history = outcome.history
    if not history.weights:
        return f"ended at step {history.reached}"
    shown = history.weights[:12]
    if outcome is first:
        return shown
    if not history.kept_its_size:
        return f"{shown}, of fewer ranks"
    return f"{shown}, {'the same bits' if history.weights == first.history.weights else 'other bits'}"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """The rows of a table, its columns aligned; to the left those whose numbers are given."""
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))]
    return ["  ".join(_padded(cell, widths[i], i in left) for i, cell in enumerate(row)).rstrip() for row in rows]


def _padded(cell: str, width: int, left: bool) -> str:
    return f"{cell:<{width}}" if left else f"{cell:>{width}}"
