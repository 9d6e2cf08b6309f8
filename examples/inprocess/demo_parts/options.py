"""The demo's options; what cannot work is refused, with exit code 2, before anything starts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo_parts.schedule import KINDS, PlannedFault, plan_faults

__all__ = ["Options", "parse_options"]

FAULTS = "exception,kill,hang_recv,gil_locked"
STEPS, QUICK_STEPS = 1200, 160


@dataclass(frozen=True)
class Options:
    """What is asked for."""

    ranks: int
    steps: int
    seed: int
    faults: tuple[PlannedFault, ...]
    output: Path
    reference: bool


def parse_options(arguments: Sequence[str]) -> Options:
    """Reads the command line.

    Raises:
        SystemExit: with code 2 and a line on stderr for what cannot be done; with code 0 after `--help`.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    steps = asked.steps or (QUICK_STEPS if asked.quick else STEPS)
    try:
        faults = plan_faults(asked.faults, ranks=asked.ranks, steps=steps, seed=asked.seed)
    except ValueError as error:
        parser.error(f"argument --faults: {error}")
    try:
        asked.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --output: {asked.output} cannot be made a folder: {error.strerror}")
    return Options(
        asked.ranks, steps, asked.seed, faults, asked.output, reference=not (asked.quick or asked.no_reference)
    )


def _parser() -> argparse.ArgumentParser:
    kinds = "\n".join(
        f"  {name:<12}{kind.text}{'; the rank is lost' if kind.lethal else ''}" for name, kind in KINDS.items()
    )
    parser = argparse.ArgumentParser(
        "demo.py",
        description="Trains a small language model on CPU ranks, breaks it on purpose, and shows how it recovers.",
        epilog=f"a fault is KIND[:RANK][@STEP]; the kinds:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--faults", default=FAULTS, metavar="LIST", help=f"faults, separated by commas, or none (default {FAULTS})"
    )
    parser.add_argument("--ranks", type=_number(2, 16), default=4, metavar="N", help="ranks, 2 to 16 (default 4)")
    parser.add_argument(
        "--steps",
        type=_number(20, 1_000_000),
        metavar="N",
        help=f"training steps (default {STEPS}, quick {QUICK_STEPS})",
    )
    parser.add_argument(
        "--seed", type=_number(0, 2**31 - 1), default=0, metavar="N", help="of weights, samples and victims (default 0)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/demo"),
        metavar="DIR",
        help="folder for all that is written (default build/demo)",
    )
    parser.add_argument("--no-reference", action="store_true", help="without the undisturbed run")
    parser.add_argument("--quick", action="store_true", help="about 20 seconds: few steps, without the undisturbed run")
    return parser


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return read
