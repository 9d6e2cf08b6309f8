"""Any order of inputs to the machines of a round: what hypothesis finds, it shrinks to a few lines."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.harness.sim.machines import MACHINES, SETTINGS


@pytest.mark.exhaustive
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_no_order_of_inputs_breaks_a_machine(machine: type) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)
