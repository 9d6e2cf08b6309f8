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
from launcher_parts.runs import LaunchedRun

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
    add("--no-wait", action="store_true", help="do not hold faults back until the standby workers are ready")
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
            terminal.say(f"\n{layer}:", Style.BOLD)
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
    for failure in failures:
        terminal.say(f"failed: {failure}", Style.RED)
    return 1 if failures else 0


def run(layer: str, options: argparse.Namespace, terminal: Terminal) -> tuple[RunHistory, list[str]]:
    """One training."""
    folder, history = (options.output / name_of(layer)).resolve(), RunHistory()
    every = max(options.steps // 30, 2)
    settings = Settings(str(folder), RANKS, options.steps, options.seed, (), checkpoint_every=every)
    with LaunchedRun(layer, settings, options.schedule) as launched:
        for happening in follow(
            launched, history, Releases(launched, options.schedule, is_patient=not options.no_wait), terminal
        ):
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
) -> Iterator[Injection | Recovery]:
    """What happens in a run, until it is over or nothing is heard of it any more."""
    follower, heard, running = Follower(launched.settings.records), time.monotonic(), True
    ends_at = heard + (TORCHRUN_WITHIN if launched.layer == LAYERS[2] else math.inf)
    while running and time.monotonic() < min(heard + SILENCE, ends_at):
        running = launched.wait(FRAME)
        lines = follower.lines()
        heard = time.monotonic() if lines else heard
        yield from history.read(lines)
        if history.began and len(launched.launchers) == NODES:
            launched.launch_spare()
        releases.look(history, now=time.monotonic())
        if launched.layer == LAYERS[2]:
            end_hang(launched, history, terminal)
        terminal.bar(progress(history, launched.settings.steps))


class Releases:
    """Lets faults happen: one that takes new processes when each launcher has its standby workers, others at once.

    Args:
        launched: the run.
        schedule: which fault is injected at which step.
        is_patient: wait for standby workers.
    """

    def __init__(self, launched: LaunchedRun, schedule: Mapping[int, str], *, is_patient: bool) -> None:
        self._launched, self._left = launched, sorted(schedule.items())
        self._count, self._waits_since, self._waits = 0, math.inf, WARM_WITHIN if is_patient else 0.0

    def look(self, history: RunHistory, *, now: float) -> None:
        """Release the next fault if it is due; the one before must have been followed by a restart."""
        if not self._left or not history.began or history.pending is not None or len(history.injections) < self._count:
            return
        step, kind = self._left[0]
        self._waits_since = min(now, self._waits_since)
        is_warm = not needs_processes(self._launched.layer, kind) or self._launched.is_warm
        if is_warm or now >= self._waits_since + self._waits:
            self._launched.release(step)
            self._left.pop(0)
            self._waits -= now - self._waits_since
            self._count, self._waits_since = self._count + 1, math.inf


def end_hang(launched: LaunchedRun, history: RunHistory, terminal: Terminal) -> None:
    """What an operator does who finds a job standing still: the process that hangs is killed."""
    injection = history.pending
    if injection is None or injection in history.cut_off or not injection.kind.startswith("hang"):
        return
    if time.monotonic() > injection.at + CUT_OFF and launched.kill(injection.pid):
        history.cut_off.add(injection)
        terminal.say(f"    still hung: the demo ends process {injection.pid}, as an operator would", Style.YELLOW)


def tell(happening: Injection | Recovery, terminal: Terminal) -> None:
    """Says what has just happened."""
    match happening:
        case Injection(kind=kind, rank=rank, step=step):
            terminal.say(f"  ✗ step {step}, rank {rank}: {FAULTS[kind].text}", Style.RED)
        case Recovery():
            how = "in process" if not happening.processes else f"in {happening.processes} new processes"
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
