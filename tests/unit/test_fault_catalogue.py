"""The fault catalogue names a test for each fault, and the test is there."""

import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
CATALOGUE = ROOT / "docs" / "reference" / "fault-catalogue.md"
FAULTS = {*range(1, 20), 22, 23, 24, 28, *range(30, 45), 47}
"""Those of this layer."""
PROCESS = ROOT / "tests" / "process"


def rows() -> dict[int, list[str]]:
    """The tests of each fault, by its number."""
    lines = [line.split("|") for line in CATALOGUE.read_text().splitlines() if re.match(r"\| \d", line)]
    return {int(cells[1]): re.findall(r"`([^`]+)`", cells[5]) for cells in lines}


@functools.cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((PROCESS / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_fault_has_a_test_and_every_test_named_exists():
    found = rows()
    assert found.keys() == FAULTS
    assert not [number for number, tests in found.items() if not tests]
    named = [test.split("::") for tests in found.values() for test in tests]
    assert all(name.startswith("test_") for _, name in named)
    assert not [f"{file}::{name}" for file, name in named if name not in functions_of(file)]
