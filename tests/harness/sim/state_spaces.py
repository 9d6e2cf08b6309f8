"""The state spaces that `docs/explanation/how-the-protocol-is-checked.md` lists, and the rows of its table.

Count them again: python -m tests.harness.sim.state_spaces
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .checker import Checker, Figures
from .job import Config

__all__ = ["NIGHTLY", "PAGE", "SPACES", "listed", "total", "with_figures"]

PAGE: Final = Path(__file__).parents[3] / "docs" / "explanation" / "how-the-protocol-is-checked.md"
ROW: Final = re.compile(r"^\| (\d+) \| (.+) \| ([\d,]+) \| ([\d,]+) \| (\d+) \|$", re.MULTILINE)
TOTAL: Final = re.compile(r"^([\d,]+) states in total", re.MULTILINE)

SPACES: Final = {
    "crashes 2, faults 1, late operations of the dead": Config(ranks=2, crashes=2, faults=1, ghosts=True),
    "crashes 1, faults 2, atomic 1": Config(ranks=2, crashes=1, faults=2, atomic=1),
    "crashes 1, hangs 1, monitors killed 1": Config(ranks=2, crashes=1, hangs=1, kills=1),
    "faults 1, suspicions 1": Config(ranks=2, faults=1, suspicions=1),
    "leaves 1, suspicions 1": Config(ranks=2, leaves=1, suspicions=1),
    "nodes 1, suspicions 1": Config(ranks=2, nodes=1, suspicions=1),
    "nodes 1, faults 1, monitors killed 1": Config(ranks=2, nodes=1, faults=1, kills=1),
    "nodes 1, faults 1, monitors killed 1, the rendezvous endpoint asked for": Config(
        ranks=2, nodes=1, faults=1, kills=1, asks=True
    ),
    "crashes 1, faults 1, a failing assignment": Config(ranks=2, crashes=1, faults=1, errors=((1, 0),)),
    "faults 1, timeouts 2": Config(ranks=2, faults=1, quits=2),
    "nodes 1, timeouts 1": Config(ranks=2, nodes=1, quits=1),
    "crashes 1, faults 2, retry limit 2": Config(ranks=2, crashes=1, faults=2, limit=2),
    "faults 1, crashes 1, one exit with code 0": Config(ranks=2, exits=1, faults=1, crashes=1),
    "faults 1, Ctrl-C 2": Config(ranks=2, faults=1, breaks=2),
    "Ctrl-C 2, the second while the first is reported": Config(ranks=2, breaks=2, reports=True),
    "a hosted store, crashes 1, faults 1, leaves 1": Config(ranks=2, hosted=True, crashes=1, faults=1, leaves=1),
    "crashes 1, faults 1, initialize and finalize fail": Config(
        ranks=2, crashes=1, faults=1, fails=(("initialize", 1, 0), ("recover", 1, 1))
    ),
    "faults 2, atomic 1": Config(ranks=3, faults=2, atomic=1),
    "crashes 1, faults 1": Config(ranks=3, crashes=1, faults=1),
    "crashes 1, a discarded member": Config(ranks=3, crashes=1, discards=((1, 1),)),
    "two calls, crashes 1, faults 1": Config(ranks=2, second=True, crashes=1, faults=1),
    "two calls, suspicions 1": Config(ranks=2, second=True, suspicions=1),
    "two calls, nodes 1, faults 1": Config(ranks=2, second=True, nodes=1, faults=1),
    "two calls, a hosted store, crashes 1, leaves 1": Config(ranks=2, second=True, hosted=True, crashes=1, leaves=1),
    "two calls, crashes 1": Config(ranks=3, second=True, crashes=1),
    "two calls, a hosted store, leaves 1": Config(ranks=3, second=True, hosted=True, leaves=1),
}
"""The large ones, by the faults as the page names them."""

NIGHTLY: Final = {
    "crashes 2, faults 1, late operations of the dead",
    "crashes 1, hangs 1, monitors killed 1",
    "faults 1, suspicions 1",
    "leaves 1, suspicions 1",
    "nodes 1, suspicions 1",
    "nodes 1, faults 1, monitors killed 1",
    "nodes 1, faults 1, monitors killed 1, the rendezvous endpoint asked for",
    "faults 1, timeouts 2",
    "faults 2, atomic 1",
    "crashes 1, faults 1",
    "two calls, suspicions 1",
    "two calls, crashes 1",
}
"""Four fifths of all states; each mutant is found without them, in a smaller space or by the simulation."""


def listed(text: str) -> dict[str, int]:
    """Return the numbers of states in the page's table, by the faults."""
    return {faults: _number(states) for _, faults, states, _, _ in ROW.findall(text)}


def total(text: str) -> int:
    """Return the sum that the page names.

    Raises:
        ValueError: when it names none.
    """
    found = TOTAL.search(text)
    if found is None:
        raise ValueError(f"no total in {PAGE}")
    return _number(found[1])


def with_figures(text: str, figures: dict[str, Figures]) -> str:
    """Return the page's text with a row for each of the spaces, in order, and their sum."""
    rows = "\n".join(_row(faults, counted) for faults, counted in figures.items())
    first, *_, last = ROW.finditer(text)
    states = sum(counted.states for counted in figures.values())
    return TOTAL.sub(f"{states:,} states in total", f"{text[: first.start()]}{rows}{text[last.end() :]}")


def _row(faults: str, counted: Figures) -> str:
    ranks = SPACES[faults].ranks
    return f"| {ranks} | {faults} | {counted.states:,} | {counted.transitions:,} | {counted.rounds} |"


def _number(text: str) -> int:
    return int(text.replace(",", ""))


if __name__ == "__main__":
    PAGE.write_text(with_figures(PAGE.read_text(), {name: Checker(space).explore() for name, space in SPACES.items()}))
