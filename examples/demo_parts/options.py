"""The demo's options; what cannot work is refused, with exit code 2, before anything starts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo_parts.schedule import KINDS, PlannedFault, plan_faults
from demo_parts.settings import Settings

__all__ = ["Options", "parse_options"]

FAULTS = "exception,kill,hang_recv,gil_locked"
STEPS, QUICK_STEPS, PLAY_STEPS = 400, 160, 1_000_000


@dataclass(frozen=True)
class Options:
    """What is asked for.

    Attributes:
        ranks: how many train.
        spares: how many more wait in reserve.
        steps: of each run.
        seed: of weights, samples and targets.
        faults: which to inject.
        output: the folder for all that is written.
        undisturbed: whether a run without faults comes first.
        torchrun: whether the same faults are injected into a run under torchrun, too.
        play: whether the viewer breaks the run, instead of the schedule.
        svg: where the demo is drawn, if it is.
    """

    ranks: int
    spares: int
    steps: int
    seed: int
    faults: tuple[PlannedFault, ...]
    output: Path
    undisturbed: bool
    torchrun: bool
    play: bool
    svg: Path | None

    def settings(self, run: str, faults: tuple[PlannedFault, ...] = ()) -> Settings:
        """What the ranks of a run are told."""
        folder, checkpoint_every = str((self.output / run).resolve()), min(max(self.steps // 22, 5), 20)
        return Settings(folder, self.ranks, self.steps, self.seed, faults, checkpoint_every)


def parse_options(arguments: Sequence[str]) -> Options:
    """Reads the command line.

    Raises:
        SystemExit: with code 2 and a line on stderr for what cannot be done; with code 0 after `--help`.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    steps = asked.steps or (PLAY_STEPS if asked.play else QUICK_STEPS if asked.quick else STEPS)
    if asked.play and asked.svg:
        parser.error("argument --svg: it draws the runs of the schedule; leave out --play")
    try:
        faults = plan_faults(
            "none" if asked.play else asked.faults, ranks=asked.ranks, spares=asked.spares, steps=steps, seed=asked.seed
        )
    except ValueError as error:
        parser.error(f"argument --faults: {error}")
    for name, folder in (("--output", asked.output), ("--svg", asked.svg.parent if asked.svg else asked.output)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"argument {name}: {folder} cannot be made a folder: {error.strerror}")
    return Options(
        asked.ranks,
        asked.spares,
        steps,
        asked.seed,
        faults,
        asked.output,
        undisturbed=not (asked.quick or asked.no_undisturbed),
        torchrun=not (asked.quick or asked.no_torchrun),
        play=asked.play,
        svg=asked.svg,
    )


def _parser() -> argparse.ArgumentParser:
    kinds = "\n".join(
        f"  {name:<12}{kind.text}{'; the process is lost' if kind.lethal else ''}" for name, kind in KINDS.items()
    )
    parser = argparse.ArgumentParser(
        "demo.py",
        description="Trains a small language model on CPU ranks, breaks it on purpose, and shows how it recovers.",
        epilog=f"a fault is KIND[:RANK][@STEP]; the kinds:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--play", action="store_true", help="train until you stop it, and break it yourself from another terminal")
    add("--quick", action="store_true", help="20 seconds: few steps, and only the run under nvrx")
    add("--faults", default=FAULTS, metavar="LIST", help=f"faults, separated by commas, or none (default {FAULTS})")
    add("--ranks", type=_number(2, 16), default=4, metavar="N", help="ranks that train, 2 to 16 (default 4)")
    add("--spares", type=_number(0, 8), default=2, metavar="N", help="processes in reserve, 0 to 8 (default 2)")
    add("--steps", type=_number(20, 1_000_000), metavar="N", help=f"default {STEPS}, quick {QUICK_STEPS}")
    add("--seed", type=_number(0, 2**31 - 1), default=0, metavar="N", help="of weights, samples, targets (default 0)")
    add("--output", type=Path, default=Path("build/demo"), metavar="DIR", help="for all files (default build/demo)")
    add("--svg", type=Path, metavar="FILE", help="draw the terminal as an animated SVG, and the runs beside it")
    add("--no-undisturbed", action="store_true", help="without the run that nothing disturbs")
    add("--no-torchrun", action="store_true", help="without the run under torchrun")
    return parser


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return read
