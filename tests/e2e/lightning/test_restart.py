"""A fit goes on after a fault as if there had been none."""

from __future__ import annotations

import dataclasses

from tests.harness.lightning.setting import Fault, Setting


def test_an_exception_in_the_middle_of_an_epoch_changes_no_weight(run, undisturbed):
    job = run(Setting(faults=(Fault(rank=1, step=13),)))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    fitted = job.lines("fitted")
    assert [(each["step"], each["epoch"]) for each in fitted] == [(20, 2)] * 2
    expected = undisturbed(dataclasses.replace(Setting(), strategy="DDPStrategy"))
    assert {each["weights"] for each in fitted} == {expected}
