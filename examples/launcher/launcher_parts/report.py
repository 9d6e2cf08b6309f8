"""What the runs come to: a table of the faults, and a line for each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from demo_parts.durations import duration
from demo_parts.report import aligned

from launcher_parts.plan import CUT_OFF, FAULTS, HEARTBEAT, LAYERS, SECTION, TORCHRUN_WITHIN
from launcher_parts.run_history import RunHistory

__all__ = ["LEGEND", "failures_of", "fault_table", "run_table"]

LEGEND = (
    "each time: from the fault until the slowest rank has done its first step, from the last checkpoint on",
    "started: until the last new process ran; what is between that and the first step is mostly the import of torch",
    f"hangs: a section ends after {SECTION:g} s, a heartbeat is missing after {HEARTBEAT:g} s; both are in the times",
    "with Wrapper, a lost process: all are started again, because four ranks train or none, and none is in reserve",
    "before a fault that takes new processes, the runs under ft_launcher wait until the standby workers are ready; the",
    "wait is in no time but that which the run took. cold: not all of the new processes were standby workers",
    f"the run under torchrun is ended {TORCHRUN_WITHIN:g} s after its first step, so that the demo takes three minutes",
    "ended: workers that have failed or were ended for it; the launchers then stop and start all others",
    f"hung: torchrun sees nothing; the demo killed the process after {CUT_OFF:g} s, torch would have waited 30 minutes",
)


def fault_table(histories: Mapping[str, RunHistory], kinds: Iterable[str]) -> list[str]:
    """A row for each fault: what it cost in each run."""
    rows = [["fault", *histories]]
    for kind in kinds:
        cells = (_cell(history, kind, has_standbys=name != LAYERS[2]) for name, history in histories.items())
        rows.append([FAULTS[kind].name, *cells])
    return aligned(rows, left=range(len(histories) + 1))


def run_table(histories: Mapping[str, RunHistory]) -> list[str]:
    """A row for each run: how long it took, and whether its weights are those of the first, bit for bit."""
    digests = [history.weights for history in histories.values() if history.weights]
    rows = [["", "took", "stood still", "loss", "SHA-256 of the weights"]]
    for name, history in histories.items():
        still = sum(recovery.resumed for recovery in history.recoveries)
        same = " the same bits" if digests and history.weights == digests[0] and len(digests) > 1 else ""
        weights = f"{history.weights[:12]}{same}" if history.weights else f"ended at step {history.reached}"
        rows.append([name, f"{history.last - history.first:.1f} s", f"{still:.1f} s", f"{history.loss:.3f}", weights])
    return aligned(rows, left=(0, 4))


def failures_of(layer: str, history: RunHistory, kinds: Iterable[str], codes: Sequence[int | None]) -> Iterable[str]:
    """What is not as it should be under ft_launcher, in sentences; nothing is expected of torchrun."""
    if layer == LAYERS[2]:
        return
    for kind in kinds:
        if history.recovery_after(kind) is None:
            yield f"{layer}: {kind} was followed by no restart"
    if not history.weights:
        yield f"{layer}: the training did not come to its end"
    if wrong := [code for code in codes if code not in (0, -9)]:
        yield f"{layer}: launchers have ended with {wrong}"


def _cell(history: RunHistory, kind: str, *, has_standbys: bool) -> str:
    if all(injection.kind != kind for injection in history.injections):
        return "ended before it" if history.was_ended else "never came to it"
    recovery = history.recovery_after(kind)
    if recovery is None:
        return "ended while it recovered" if history.was_ended else "never recovered"
    hung = "hung, " if recovery.injection in history.cut_off else ""
    how = "in process" if recovery.started is None else f"started {duration(recovery.started)}"
    ended = f", {recovery.ended} ended" if recovery.ended else ""
    cold = ", cold" if has_standbys and recovery.standbys < recovery.processes else ""
    return f"{hung}{duration(recovery.resumed)}, {how}{cold}{ended}"
