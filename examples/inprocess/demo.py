"""Breaks a training on purpose and shows how it recovers: `python examples/inprocess/demo.py`, or `make demo`.

A small transformer learns to write Python from the standard library's own sources, on CPU ranks over gloo. A schedule
of faults strikes it; each restart is shown as it happens, with what it cost. At the end stand a table and a picture,
beside an undisturbed run of the same training.

Exit codes: 0 when every fault of the schedule was followed by its restart, the training was finished and no process
was left behind; 1 otherwise; 2 for options that cannot be met; 130 after Ctrl-C, 128 + n after signal n.
"""

from __future__ import annotations

import io
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from demo_parts.journal import Follower
from demo_parts.options import Options, parse_options
from demo_parts.picture import draw
from demo_parts.processes import ENDING, Run, StartError
from demo_parts.report import failures_of, restart_table, summary
from demo_parts.schedule import KINDS, PlannedFault
from demo_parts.settings import Settings
from demo_parts.story import Story
from demo_parts.terminal import Style, Terminal
from demo_parts.view import View

__all__ = ["main"]

FRAME = 0.1
"""Seconds between two looks at what the ranks have written."""
SILENCE = 60.0
"""Seconds without a word from any rank after which a run is given up."""


class IterationResult(BaseException):
    """A signal asks the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


@dataclass(frozen=True)
class Outcome:
    """A run that is over.

    Attributes:
        story: what happened.
        start_up: seconds from the start of the processes to the first step.
        failures: what is not as it should be, in sentences.
    """

    story: Story
    start_up: float
    failures: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    """Runs the demo; returns its exit code."""
    options = parse_options(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for ending in ENDING:
        signal.signal(ending, _leave)
    terminal = Terminal(sys.stdout)
    try:
        return demonstrate(options, terminal)
    except StartError as error:
        terminal.say(f"failed: {error}", Style.RED)
        return 1
    except IterationResult as ended:
        terminal.end_bar()
        terminal.say(f"Ended by {ended.signal.name}; every process of the run has been ended, too.")
        return 128 + ended.signal


def demonstrate(options: Options, terminal: Terminal) -> int:
    """The undisturbed run, if it is wanted, then the one with the faults, then what there is to say of them."""
    terminal.say(
        f"A small transformer learns to write Python: {options.ranks} ranks, {options.steps} steps.", Style.BOLD
    )
    undisturbed = None
    if options.reference:
        terminal.say("\nFirst undisturbed, to compare with:")
        undisturbed = train(options, (), options.output / "undisturbed", terminal)
    terminal.say(f"\nNow with {len(options.faults)} faults:")
    for fault in options.faults:
        terminal.say(
            f"  step {fault.step:>{len(str(options.steps))}}  rank {fault.initial_rank}  {KINDS[fault.kind].text}"
        )
    disturbed = train(options, options.faults, options.output / "disturbed", terminal)
    report(options, undisturbed, disturbed, terminal)
    failures = [*(undisturbed.failures if undisturbed else ()), *disturbed.failures]
    for failure in failures:
        terminal.say(f"failed: {failure}", Style.RED)
    return 1 if failures else 0


def train(options: Options, faults: tuple[PlannedFault, ...], folder: Path, terminal: Terminal) -> Outcome:
    """One run, shown while it goes on."""
    settings = Settings(str(folder.resolve()), options.steps, options.seed, faults, max(options.steps // 22, 5))
    _empty(settings.records, settings.checkpoints)
    story = Story(options.ranks)
    started = time.time()
    with Run(settings, options.ranks) as run:
        follow(run, settings, story, terminal)
        exit_codes = run.exit_codes
    left_behind = [f"processes were left behind: {run.left_behind}"] if run.left_behind else []
    start_up = story.points[0].wall - started if story.points else 0.0
    return Outcome(story, start_up, (*failures_of(story, faults, exit_codes, folder), *left_behind))


def follow(run: Run, settings: Settings, story: Story, terminal: Terminal) -> None:
    """Shows a run until it is over, or nothing is heard of it any more."""
    view, follower = View(terminal, story, settings.steps), Follower(settings.records)
    heard, running = time.monotonic(), True
    while running and time.monotonic() < heard + SILENCE:
        running = run.wait(FRAME)
        if lines := follower.lines():
            heard = time.monotonic()
        for happening in story.read(lines):
            view.show(happening)
        view.progress()
    view.end()


def report(options: Options, undisturbed: Outcome | None, disturbed: Outcome, terminal: Terminal) -> None:
    """The table, the two runs side by side, what the model has learned, and the picture."""
    story = disturbed.story
    if not story.points or (undisturbed and not undisturbed.story.points):
        return
    if story.restarts:
        terminal.say("\nThe restarts, in milliseconds, phase by phase on the slowest rank:\n", Style.BOLD)
    for row in restart_table(story) if story.restarts else ():
        terminal.say(f"  {row}")
    terminal.say()
    if undisturbed:
        terminal.say(f"  undisturbed  {summary(undisturbed.story)}")
    terminal.say(f"  with faults  {summary(story)}")
    terminal.say(
        f"  starting all processes took {disturbed.start_up:.1f} s: what a restart of the job would cost each time"
    )
    terminal.say("\nWhat the model writes by now:\n", Style.BOLD)
    for line in story.sample.splitlines():
        terminal.say(f"  │ {line}", Style.DIM)
    picture = options.output / "loss.svg"
    title = f"{options.ranks} ranks, {len(story.strikes)} faults, {len(story.restarts)} restarts"
    picture.write_text(draw(story, undisturbed.story if undisturbed else None, title), encoding="utf-8")
    terminal.say(f"\nThe picture: {picture}", Style.BOLD)


def _empty(*folders: Path) -> None:
    """Makes the folders; what an earlier run left in them goes."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def _leave(number: int, _: object) -> NoReturn:
    raise IterationResult(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
