"""The fault catalogue names a test for each fault, and the test is there."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CATALOGUE = ROOT / "docs" / "reference" / "fault-catalogue.md"
FAULTS = {
    "## In a wrapped function": {*range(1, 20), 22, 23, 24, 28, *range(30, 45), 47},
    "## Under ft_launcher": {*range(1, 11), 15, *range(17, 23), *range(25, 30), *range(33, 38), 43, *range(45, 53)},
    "## In a checkpoint of Megatron": {30, 31, 32, 42},
}
"""Those of each layer, by the heading of its table."""
PLACES = {"## In a checkpoint of Megatron": ROOT / "tests"}
PROCESS = ROOT / "tests" / "process"


def rows(heading: str) -> dict[int, list[str]]:
    """The tests of each fault of a table, by its number."""
    table = CATALOGUE.read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    lines = [line.split("|") for line in table.splitlines() if re.match(r"\| \d", line)]
    return {int(cells[1]): re.findall(r"`([^`]+\.py::[^`]+)`", cells[5]) for cells in lines}


@functools.cache
def functions_of(file: pathlib.Path) -> frozenset[str]:
    tree = ast.parse(file.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("heading", FAULTS)
def test_every_fault_has_a_test_and_every_test_named_exists(heading):
    found = rows(heading)
    assert found.keys() == FAULTS[heading]
    assert not [number for number, tests in found.items() if not tests]
    folder = PLACES.get(heading, PROCESS)
    named = [test.split("::") for tests in found.values() for test in tests]
    assert all(name.startswith("test_") for _, name in named)
    assert not [f"{file}::{name}" for file, name in named if name not in functions_of(folder / file)]
