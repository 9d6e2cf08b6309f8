"""The tables of the Lightning documents: the trainings are those that are verified, the sections those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from nvrx_lightning.monitoring import sections
from nvrx_lightning.monitoring.timeouts import STEPS, TimeoutLearning, TrainingHistory

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts
from nvrx_core.fault_tolerance.timeouts import Measured

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "harness" / "lightning" / "programs"


def test_the_page_says_how_many_trainings_are_verified() -> None:
    stated = re.compile(r"^@(same|warned|differs|fails|refused)\b", re.MULTILINE)
    parts = (path for path in PROGRAMS.glob("*.py") if path.stem not in ("refusals", "unmended"))
    count = sum(len(stated.findall(path.read_text())) for path in parts)
    assert f"{count} small trainings" in (ROOT / "docs" / "reference" / "lightning.md").read_text()


NAMED_IN_DEVIATIONS = "| sections are `setup`, `step`, `checkpointing`;"
NAMED_FOR_USERS_OF_THE_PEER = "| the configured sections |"


def test_the_tables_name_the_sections_of_the_code() -> None:
    documented = [name for name, _, _ in table_of_sections()]
    in_the_code = re.findall(r"^\| `(\w+)` \|", sections.__doc__ or "", re.MULTILINE)
    assert documented == in_the_code
    assert set(documented) == sections.SECTIONS
    for page, begin in (
        ("reference/deviations.md", NAMED_IN_DEVIATIONS),
        ("how-to/from-nvidia-resiliency-ext.md", NAMED_FOR_USERS_OF_THE_PEER),
    ):
        (row,) = (each for each in read(page).splitlines() if each.startswith(begin))
        theirs_and_ours = "|".join(row.split("|")[1:4])
        assert set(re.findall(r"`(\w+)`", theirs_and_ours)) == sections.SECTIONS, page


def test_the_table_says_which_timeouts_are_learned() -> None:
    new, resumed = (learned_by(TrainingHistory(steps=STEPS, resumed=resumed)) for resumed in (False, True))
    for name, _, learned in table_of_sections():
        each = "yes" if name in new else "in a training that has loaded a checkpoint" if name in resumed else "no"
        assert learned == each, name


def table_of_sections() -> list[list[str]]:
    """The rows of the table of sections in the guide: its name, when it is open, whether its timeout is learned."""
    rows = read("how-to/lightning.md").partition("| section | is open | learned |\n")[2].partition("\n\n")[0]
    return [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows.splitlines()[1:]]


def learned_by(training: TrainingHistory) -> frozenset[str]:
    """The sections whose timeout a training learns that has measured all of them."""
    learning = TimeoutLearning(HeartbeatTimeouts(), SectionTimeouts(), HeartbeatTimeouts(initial=60.0, subsequent=60.0))
    state = learning.learn(Measured(sections=dict.fromkeys(sections.SECTIONS, 1.0)), training, 2.0)
    return frozenset(state["current_timeouts"]["section"]["calculated_sections"])


def read(page: str) -> str:
    return (ROOT / "docs" / page).read_text()
