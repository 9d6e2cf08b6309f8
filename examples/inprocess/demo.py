"""Breaks a training on purpose and shows how it recovers: `python examples/inprocess/demo.py`, or `make demo`.

A small transformer learns to write Python from the standard library's own sources, on CPU ranks over gloo: undisturbed,
with a schedule of faults under nvrx, and with the same faults under torchrun. At the end stand what each fault cost,
what each run came to, and a picture. With `--play` the faults are the viewer's.

Exit codes: 0 when every fault of the schedule was followed by its restart under nvrx, the training was finished and no
process was left behind; 1 otherwise; 2 for options that cannot be met; 130 after Ctrl-C, 128 + n after
signal n. With `--play` Ctrl-C is the way to end it, with code 0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_parts.following import Following
from demo_parts.options import Options, parse_options
from demo_parts.picture import draw_runs
from demo_parts.play import play
from demo_parts.program import run_program
from demo_parts.recording import draw_terminal
from demo_parts.report import Outcome, failures_of, fault_table, legend, run_table
from demo_parts.run_history import RunHistory
from demo_parts.runs import NvrxRun, StartError, TorchrunRun
from demo_parts.schedule import PlannedFault
from demo_parts.terminal import Style, Terminal
from demo_parts.view import View

__all__ = ["main"]

SAMPLE_LINES = 3


def main(arguments: Sequence[str]) -> int:
    """Runs the demo; returns its exit code."""
    options = parse_options(arguments)
    return run_program(lambda terminal: shown(options, terminal))


def shown(options: Options, terminal: Terminal) -> int:
    """What is asked for: the viewer's faults, or the schedule's."""
    try:
        return play(options, terminal) if options.play else demonstrate(options, terminal)
    except StartError as error:
        terminal.say(f"failed: {error}", Style.RED)
        return 1


def demonstrate(options: Options, terminal: Terminal) -> int:
    """One run after another, then what there is to say of them."""
    terminal.say(
        f"A small transformer learns to write Python: {options.ranks} ranks, {options.steps} steps.", Style.BOLD
    )
    outcomes = []
    if options.undisturbed:
        terminal.say("\nFirst undisturbed, to compare with:")
        outcomes.append(under_nvrx("undisturbed", options, terminal))
    terminal.say(f"\nNow with {len(options.faults)} faults, under nvrx:")
    outcomes.append(under_nvrx("nvrx", options, terminal, faults=options.faults, spares=options.spares))
    if options.torchrun:
        terminal.say("\nThe same faults under plain torchrun, which starts all processes anew:")
        outcomes.append(under_torchrun(options, terminal))
    report(options, outcomes, terminal)
    if options.svg:
        options.svg.write_text(draw_terminal(terminal.recording, "make demo"), encoding="utf-8")
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    for failure in failures:
        terminal.say(f"failed: {failure}", Style.RED)
    return 1 if failures else 0


def under_nvrx(
    name: str, options: Options, terminal: Terminal, *, faults: tuple[PlannedFault, ...] = (), spares: int = 0
) -> Outcome:
    """A run that the wrapper protects."""
    settings, history = options.settings(name, faults), RunHistory(options.ranks, spares)
    with NvrxRun(settings, spares) as run:
        Following(run, history, View(terminal, history, settings.steps)).to_the_end()
        exit_codes = run.exit_codes
    left_behind = [f"processes were left behind: {sorted(run.left_behind)}"] if run.left_behind else []
    failures = failures_of(history, faults, exit_codes, Path(settings.folder))
    return Outcome(name, history, (*failures, *left_behind))


def under_torchrun(options: Options, terminal: Terminal) -> Outcome:
    """A run that torchrun restarts: it is measured, and nothing is expected of it."""
    settings, history = options.settings("torchrun", options.faults), RunHistory(options.ranks, protected=False)
    with TorchrunRun(settings) as run:
        Following(run, history, View(terminal, history, settings.steps)).to_the_end()
    return Outcome("torchrun", history)


def report(options: Options, outcomes: Sequence[Outcome], terminal: Terminal) -> None:
    """What the model has learned, what each fault cost, what each run came to, and the pictures."""
    histories = {outcome.name: outcome.history for outcome in outcomes}
    history, torchrun = histories["nvrx"], histories.get("torchrun")
    if not history.points:
        return
    terminal.say("\nWhat the model writes by now:", Style.BOLD)
    for line in [line for line in history.sample.splitlines() if line.strip()][:SAMPLE_LINES]:
        terminal.say(f"  │ {line}", Style.DIM)
    if history.recoveries:
        terminal.say("\nWhat each fault cost:\n", Style.BOLD)
        for row in fault_table(history, torchrun):
            terminal.say(f"  {row}")
        terminal.say()
        for row in legend(torchrun):
            terminal.say(f"  {row}", Style.DIM)
    terminal.say("\nWhat each run came to:\n", Style.BOLD)
    for row in run_table(outcomes):
        terminal.say(f"  {row}")
    picture = options.svg.with_stem(f"{options.svg.stem}-runs") if options.svg else options.output / "runs.svg"
    pictures = [str(picture), *([str(options.svg)] if options.svg else [])]
    picture.write_text(draw_runs(histories), encoding="utf-8")
    terminal.say(f"\nAs a picture: {', '.join(pictures)}", Style.BOLD)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
