"""A wrong configuration is answered with one line: where it is, what is wrong, why, and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance import FaultToleranceConfig
from tests.harness.bad_configurations import BAD

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("bad", BAD, ids=[bad.name for bad in BAD])
def test_a_wrong_configuration_is_answered_with_its_line(bad, tmp_path):
    assert bad.answer(tmp_path) == bad.line


def test_the_table_is_long_and_has_no_line_twice():
    assert len({(bad.name, bad.body) for bad in BAD}) == len(BAD) >= 60


def test_no_wrong_configuration_needs_torch():
    command = [sys.executable, "-m", "tests.harness.bad_configurations"]
    said = subprocess.check_output(command, cwd=ROOT, text=True)
    assert said.startswith(f"{len(BAD)} of {len(BAD)} answered by their line")
    assert said.endswith("torch is not imported\n")


def test_an_error_has_its_parts_as_fields_and_an_exit_code():
    with pytest.raises(ConfigurationError) as found:
        FaultToleranceConfig(safety_factor=0)
    assert isinstance(found.value, ValueError)
    assert (found.value.place, found.value.key, found.value.exit_code) == ("FaultToleranceConfig", "safety_factor", 2)
    assert found.value.problem == "0 is not allowed, it must be greater than 1 and at most 1000"
    assert found.value.advice == "write 5.0 (the default)"
