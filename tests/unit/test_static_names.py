"""A user's type checker knows the public names, which are imported on first access, and no others."""

import importlib
import re

import pytest

from nvrx_core import inprocess
from tests.harness.type_checkers import CHECKERS, Findings, checked

PACKAGES = (
    "nvrx_core.errors", "nvrx_core.fault_tolerance", "nvrx_core.inprocess", "nvrx_core.rank_assignment",
    "nvrx_core.store", "nvrx_core.testing", "nvrx_compat", "nvrx_launcher", "nvrx_lightning", "nvrx_megatron",
    *(f"nvrx_core.inprocess.{module}" for module in inprocess._MODULES),
)  # fmt: skip
NAMES = [(package, name) for package in PACKAGES for name in importlib.import_module(package).__all__]
LIGHTNING = """\
import lightning.pytorch
import pytorch_lightning
from lightning.pytorch.strategies import DDPStrategy
from nvrx_lightning import FaultToleranceCallback, InProcessDDPStrategy, in_process

lightning.pytorch.Trainer(strategy=InProcessDDPStrategy(static_graph=True), callbacks=[FaultToleranceCallback()])
pytorch_lightning.Trainer(strategy=InProcessDDPStrategy(), callbacks=[FaultToleranceCallback()])
reveal_type(InProcessDDPStrategy().in_process_options)
reveal_type(in_process(DDPStrategy(), soft_timeout=60))
in_process(DDPStrategy, soft_timeout=60)(soft_timeout=30)
"""
MEGATRON = """\
import argparse
from nvrx_core.inprocess import CallWrapper
from nvrx_megatron import inprocess_restart

def train(args: argparse.Namespace, call_wrapper: CallWrapper) -> int:
    return 3

given = argparse.Namespace()
reveal_type(inprocess_restart(train, given)(given))
"""
LAUNCHER = """\
from nvrx_launcher import LaunchConfig, elastic_launch

reveal_type(elastic_launch(LaunchConfig(1, 1, nproc_per_node=2), print)("hello"))
LaunchConfig(1, 1, nproc_per_node="2")
LaunchConfig(1, 1, 2, fault_tolerence={})
"""


LAZY = [package for package in PACKAGES if hasattr(importlib.import_module(package), "__getattr__")]
SCRIPTS = {
    "names": "\n".join((
        "# pyright: strict",
        *(f"from {package} import {name} as n{n}\nreveal_type(n{n})" for n, (package, name) in enumerate(NAMES)),
        "",
    )),
    "misspelt": "\n".join(f"from {package} import Misspelt as n{n}" for n, package in enumerate(LAZY)),
    "lightning": LIGHTNING,
    "megatron": MEGATRON,
    "launcher": LAUNCHER,
}  # fmt: skip


@pytest.fixture(scope="module", params=CHECKERS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Findings]:
    """What a checker says of the scripts."""
    return checked(request.param, SCRIPTS, tmp_path_factory.mktemp(request.param))


def test_each_public_name_has_a_type(found):
    names = found["names"]
    assert names.errors == [], names.output
    assert len(names.revealed) == len(NAMES)
    assert [name for name, kind in zip(NAMES, names.revealed, strict=True) if re.search(r"Unknown|^Any$", kind)] == []


def test_a_misspelt_name_is_an_error(found):
    misspelt = found["misspelt"]
    assert misspelt.wrong_lines == list(range(1, len(LAZY) + 1)), misspelt.output
    assert len(LAZY) >= 9


def test_strategies_and_callbacks_fit_the_trainers_of_both_families(found):
    script = found["lightning"]
    assert (script.errors, script.revealed) == ([], ["InProcessOptions", "DDPStrategy"]), script.output


def test_a_function_that_megatron_restarts_keeps_its_result(found):
    script = found["megatron"]
    assert (script.errors, script.revealed) == ([], ["int"]), script.output


def test_a_launchers_configuration_is_checked(found):
    script = found["launcher"]
    assert (script.wrong_lines, script.revealed) == ([4, 5], ["dict[int, Any]"]), script.output
