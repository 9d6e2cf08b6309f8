"""`nvrx_lightning.verify`: a training with a fault at each hook, beside the training without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.process.job import Template
from tests.harness.process.launch import RUN_SCRIPT, ForkedProcess

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests" / "harness" / "lightning" / "programs"
LIMIT, LIMIT_OF_A_NIGHT = 280, 1400
PARTS = ("optimization", "weights", "ends", "data", "state", "refusals")
CHECKPOINT, DEFAULT = "checkpoint", ""
HOOKS = (
    "on_train_start", "on_train_epoch_start", "on_train_batch_start", "backward", "optimizer_step",
    "on_train_batch_end", "save_checkpoint", "on_validation_start", "validation_step", "on_validation_end",
    "on_train_epoch_end", "on_train_end",
)  # fmt: skip
"""One in each part of a fit between two things that a restart treats differently."""
SCRIPT = """\
import sys
import nvrx_lightning

def mine():
    from tests.harness.lightning.programs import state
    return state.a_list_on_the_module()

if __name__ == "__main__":
    report = nvrx_lightning.verify(mine, hooks=("backward",))
    (fault,) = report.faults
    print("found", fault.difference.what, "at", fault.difference.where)
    sys.exit(report.exit_code)
"""


Run = Callable[..., subprocess.CompletedProcess[str]]
Unmet = Callable[..., dict[str, list[str]]]


@pytest.fixture
def run(lightning_template: Template) -> Run:
    """Runs a module in a process that has imported Lightning."""

    def run(module: str, *arguments: str, limit: float = LIMIT) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
        with ForkedProcess(lightning_template, module, arguments, environment) as process:
            try:
                out, errors = process.communicate(timeout=limit)
            finally:
                process.kill()
        return subprocess.CompletedProcess([module, *arguments], process.returncode, out, errors)

    return run


@pytest.fixture
def unmet(run: Run, tmp_path: Path) -> Unmet:
    """Verifies programs; returns what is not as it is written beside each of them.

    What differs after a restart from a checkpoint may be the same from memory.
    """

    def unmet(hooks: str, *names: str, resume: str = CHECKPOINT, limit: float = LIMIT) -> dict[str, list[str]]:
        reports = tmp_path / "reports"
        done = run("tests.harness.lightning.verifying", str(reports), hooks, resume, *names, limit=limit)
        assert done.returncode == 0, done.stdout + done.stderr
        print(done.stdout)
        lines = [json.loads(line) for line in reports.read_text().splitlines()]
        assert len(lines) >= len(names)
        return {
            line["name"]: line["unmet"] for line in lines if line["unmet"] and (line["same"] or resume == CHECKPOINT)
        }

    return unmet


def test_the_command_finds_the_same_bits_after_faults(run):
    hooks = "setup,on_train_batch_start,save_checkpoint,on_validation_end"
    done = run("nvrx_lightning.verify", f"{PROGRAMS / 'optimization.py'}:usual", "--hooks", hooks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\bthe same$", done.stdout, re.MULTILINE)) == 4, done.stdout
    assert "the same bits after each fault (4 faults in" in done.stdout


def test_the_function_names_a_list_that_keeps_leftovers_and_warns_of_it_with_what_to_write(run, tmp_path):
    script = tmp_path / "training.py"
    script.write_text(SCRIPT)
    done = run(RUN_SCRIPT, str(script))
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"found module.losses at epoch \d, batch \d", done.stdout), done.stdout
    assert re.search(r"^InProcessDDPStrategy.backward .* module.losses differs at epoch", done.stdout, re.MULTILINE)
    warning = r"^warning: module.losses has \d items and had \d: .* Use self.log\(..., on_epoch=True\)"
    assert re.search(warning, done.stdout, re.MULTILINE), done.stdout


def test_a_handful_of_trainings_are_found_as_expected_and_what_cannot_be_verified_is_refused(unmet):
    handful = (
        "data:random_transforms_in_workers",
        "data:persistent_workers_and_saves_of_epochs",
        "state:metrics_of_validations",
    )
    assert unmet("backward", "refusals", *handful) == {}


def test_restarts_from_memory_leave_the_same_bits(unmet):
    trainings = "ends:two_saves_in_a_step", "optimization:accumulation"
    assert unmet("optimizer_step,save_checkpoint", *trainings, resume="memory") == {}


@pytest.mark.nightly
@pytest.mark.parametrize("part", PARTS)
def test_each_training_is_found_as_expected(part, unmet):
    assert unmet(",".join(HOOKS), part, limit=LIMIT_OF_A_NIGHT) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("part", PARTS)
def test_what_is_exact_from_a_checkpoint_is_so_by_default(part, unmet):
    hooks = [each for each in HOOKS if each not in ("on_train_start", "save_checkpoint", "on_train_end")]
    found = unmet(",".join(hooks), part, resume=DEFAULT, limit=LIMIT_OF_A_NIGHT)
    assert found == {}


@pytest.mark.nightly
def test_a_part_of_the_restart_that_is_switched_off_is_found(unmet):
    """Each program patches its ranks, which are processes of their own."""
    assert unmet("on_train_epoch_start,backward,on_train_end", "unmended", limit=LIMIT_OF_A_NIGHT) == {}


@pytest.mark.nightly
def test_a_fault_at_each_hook_of_each_object_leaves_the_same_bits(run):
    done = run("nvrx_lightning.verify", f"{PROGRAMS / 'optimization.py'}:usual", "--every", limit=LIMIT_OF_A_NIGHT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_function_that_is_called_by_its_own_import_is_told_so(run, tmp_path):
    script = tmp_path / "training.py"
    script.write_text(SCRIPT.replace('if __name__ == "__main__":', "if True:"))
    done = run(RUN_SCRIPT, str(script))
    assert done.returncode == 1
    assert 'call it under `if __name__ == "__main__":`' in done.stderr


def test_a_hook_that_is_not_called_ends_the_command_with_those_that_are(run):
    options = ("--hooks", "on_train_batch_begin", "--epochs", "1", "--batches", "1")
    done = run("nvrx_lightning.verify", f"{PROGRAMS / 'optimization.py'}:usual", *options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search("no hook is called on_train_batch_begin: write one of .*on_train_batch_start", done.stderr)


def test_a_module_that_ends_its_process_ends_the_command_with_code_2_and_sees_no_arguments_of_it(run, tmp_path):
    script = tmp_path / "training.py"
    script.write_text("import sys\nprint(sys.argv)\nsys.exit(0)\n")
    done = run("nvrx_lightning.verify", f"{script}:make", "--epochs", "1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == f"['{script}']\n"
    assert 'write `if __name__ == "__main__":` before what trains' in done.stderr


@pytest.mark.parametrize("source", ["gone.py:make", pytest.param("programs", marks=pytest.mark.nightly)])
def test_a_source_that_is_none_ends_the_command_with_code_2(run, source):
    done = run("nvrx_lightning.verify", source)
    assert done.returncode == 2
    assert "not verified: " in done.stderr
