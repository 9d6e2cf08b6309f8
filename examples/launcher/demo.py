"""Breaks a launched training on purpose and shows how it recovers: `make demo-launcher`.

Two launchers with two ranks each train a small model on this machine, and a third launcher waits. The same faults
are injected into three runs: under `ft_launcher`, under `ft_launcher` with a wrapped training function, and under
torchrun. The report says what each fault cost, and how each run ended.

Exit codes: 0 when every fault was followed by a restart under ft_launcher, the training was finished and no process
was left behind; 1 otherwise; 2 for wrong options; 128 + n after signal n.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_parts.durations import duration
from demo_parts.journal import Follower
from demo_parts.program import run_program
from demo_parts.settings import Settings
from demo_parts.terminal import Style, Terminal
from launcher_parts.plan import (
    CUT_OFF,
    FAULTS,
    LAYERS,
    NODES,
    RANKS,
    TORCHRUN_WITHIN,
    WARM_WITHIN,
    WORKERS,
    needs_processes,
    planned,
)
from launcher_parts.report import LEGEND, failures_of, fault_table, run_table
from launcher_parts.run_history import Injection, Recovery, RunHistory
from launcher_parts.runs import LaunchedRun, cycle_logs

__all__ = ["main"]

FRAME = 0.1
SILENCE = 60.0
"""Seconds without a word from any rank after which a run is given up."""


def main(arguments: Sequence[str]) -> int:
    """Runs the demo; returns its exit code."""
    options = parse(arguments)
    return run_program(lambda terminal: demonstrate(options, terminal))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; what cannot work ends it with code 2."""
    kinds = "\n".join(f"  {name:<15}{fault.text}" for name, fault in FAULTS.items())
    parser = argparse.ArgumentParser(
        "demo.py", description="Trains under launchers, breaks ranks and a node, and shows what it costs.",
        epilog=f"the faults:\n{kinds}", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("--faults", default=",".join(FAULTS), metavar="LIST", help="faults, separated by commas (default: all)")
    add("--steps", type=int, default=200, metavar="N", help="of each run (default 200)")
    add("--seed", type=int, default=0, metavar="N", help="of weights and samples (default 0)")
    add("--output", type=Path, default=Path("build/demo-launcher"), metavar="DIR", help="for all files")
    add("--no-torchrun", action="store_true", help="without the run under torchrun")
    wait = f"hold a fault back until the standby workers are ready, at most so long (default {WARM_WITHIN:g})"
    add("--wait", type=float, default=WARM_WITHIN, metavar="SECONDS", help=wait)
    add("--no-wrapper", action="store_true", help="without the run with the wrapper")
    options = parser.parse_args(arguments)
    try:
        options.schedule = planned([name for name in options.faults.split(",") if name], options.steps)
        options.output.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return options


def demonstrate(options: argparse.Namespace, terminal: Terminal) -> int:
    """One run after another, then what there is to say of them."""
    what = f"A small transformer on {NODES} launchers with {WORKERS} ranks each, {options.steps} steps."
    terminal.say(what, Style.BOLD)
    left_out = {LAYERS[1]: options.no_wrapper, LAYERS[2]: options.no_torchrun}
    histories, failures = {}, list[str]()
    for layer in LAYERS:
        if not left_out.get(layer):
            bound = f", ended {TORCHRUN_WITHIN:g} s after its first step" if layer == LAYERS[2] else ""
            terminal.say(f"\n{layer}{bound}:", Style.BOLD)
            histories[layer], failed = run(layer, options, terminal)
            failures += failed
    terminal.say("\nWhat each fault cost:\n", Style.BOLD)
    for row in fault_table(histories, options.schedule.values()):
        terminal.say(f"  {row}")
    terminal.say()
    for row in LEGEND:
        terminal.say(f"  {row}", Style.DIM)
    terminal.say("\nWhat each run came to:\n", Style.BOLD)
    for row in run_table(histories):
        terminal.say(f"  {row}")
    timeline = f"{os.path.relpath(sys.executable)} -m nvrx_core.events.timeline"
    terminal.say(f"\nThe whole run history: {timeline} {options.output / name_of(LAYERS[0]) / 'records'}")
    logs = cycle_logs(options.output / name_of(LAYERS[0]))
    if logs:
        terminal.say(f"What all workers printed, by cycle: {', '.join(map(str, logs))}")
    for failure in failures:
        terminal.say(f"failed: {failure}", Style.RED)
    return 1 if failures else 0


def run(layer: str, options: argparse.Namespace, terminal: Terminal) -> tuple[RunHistory, list[str]]:
    """One training."""
    folder, history = (options.output / name_of(layer)).resolve(), RunHistory()
    every = max(options.steps // 30, 2)
    settings = Settings(str(folder), RANKS, options.steps, options.seed, (), checkpoint_every=every)
    with LaunchedRun(layer, settings, options.schedule) as launched:
        releases = Releases(launched, options.schedule, waits=options.wait)
        for happening in follow(launched, history, releases, terminal):
            tell(happening, terminal)
        codes = launched.exit_codes
    terminal.end_bar()
    terminal.say(progress(history, options.steps))
    failed = list(failures_of(layer, history, options.schedule.values(), codes))
    if launched.left_behind:
        failed.append(f"{layer}: processes were left behind: {sorted(launched.left_behind)}")
    return history, [f"{each}; see {folder}" for each in failed]


def follow(
    launched: LaunchedRun, history: RunHistory, releases: Releases, terminal: Terminal
) -> Iterator[Injection | Recovery | Released]:
    """What happens in a run, until it is over or nothing is heard of it any more."""
    follower, heard, running = Follower(launched.settings.records), time.monotonic(), True
    is_torchrun = launched.layer == LAYERS[2]
    while running and time.monotonic() < heard + SILENCE and not history.was_ended:
        running = launched.wait(FRAME)
        lines = follower.lines()
        heard = time.monotonic() if lines else heard
        yield from history.read(lines)
        if len(launched.launchers) == NODES and (history.began if is_torchrun else launched.has_begun):
            launched.launch_spare()
        yield from releases.look(history, now=time.monotonic())
        if is_torchrun:
            end_hang(launched, history, terminal)
            history.was_ended = history.began and time.monotonic() > history.first + TORCHRUN_WITHIN
        terminal.bar(progress(history, launched.settings.steps))


@dataclass(frozen=True)
class Released:
    """A fault that takes new processes may happen.

    Attributes:
        waited: seconds for which the standby workers were waited for.
        is_warm: they are ready.
    """

    waited: float
    is_warm: bool


class Releases:
    """Lets faults happen: one that takes new processes when each launcher has its standby workers, others at once.

    Args:
        launched: the run.
        schedule: which fault is injected at which step.
        waits: seconds for which standby workers are waited for before a fault.
    """

    def __init__(self, launched: LaunchedRun, schedule: Mapping[int, str], *, waits: float) -> None:
        self._launched, self._left = launched, sorted(schedule.items())
        self._count, self._waits_since, self._waits = 0, math.inf, waits

    def look(self, history: RunHistory, *, now: float) -> Iterator[Released]:
        """Release the next fault if it is due; the one before must have been followed by a restart."""
        if not self._left or not history.began or history.pending is not None or len(history.injections) < self._count:
            return
        step, kind = self._left[0]
        self._waits_since = min(now, self._waits_since)
        waited, needs_standbys = now - self._waits_since, needs_processes(self._launched.layer, kind)
        is_warm = needs_standbys and self._launched.is_warm
        if is_warm or not needs_standbys or waited >= self._waits:
            self._launched.release(step)
            self._left.pop(0)
            self._count, self._waits_since = self._count + 1, math.inf
            if needs_standbys:
                yield Released(waited, is_warm=is_warm)


def end_hang(launched: LaunchedRun, history: RunHistory, terminal: Terminal) -> None:
    """What an operator does who finds a job standing still: the process that hangs is killed."""
    injection = history.pending
    if injection is None or injection in history.cut_off or not injection.kind.startswith("hang"):
        return
    if time.monotonic() > injection.at + CUT_OFF and launched.kill(injection.pid):
        history.cut_off.add(injection)
        terminal.say(f"    still hung: the demo ends process {injection.pid}, as an operator would", Style.YELLOW)


def tell(happening: Injection | Recovery | Released, terminal: Terminal) -> None:
    """Says what has just happened."""
    match happening:
        case Released(waited=waited, is_warm=is_warm):
            ready = "all standby workers are ready" if is_warm else "not all standby workers are ready"
            terminal.say(f"  · {ready}, waited for {waited:.1f} s", Style.DIM if is_warm else Style.YELLOW)
        case Injection(kind=kind, rank=rank, step=step):
            terminal.say(f"  ✗ step {step}, rank {rank}: {FAULTS[kind].text}", Style.RED)
        case Recovery():
            new = f"in {happening.processes} new processes, of which {happening.standbys} were standby workers"
            how = new if happening.processes else "in process"
            took = duration(happening.resumed)
            terminal.say(f"  ✓ {took} after the fault all ranks have done step {happening.step}, {how}", Style.GREEN)


def progress(history: RunHistory, steps: int) -> str:
    """A line on how far a run is."""
    return f"  step {history.reached}/{steps}  loss {history.loss:.3f}" if history.began else "  starting ..."


def name_of(layer: str) -> str:
    """The name of a run's folder."""
    return layer.replace(" ", "-").lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
