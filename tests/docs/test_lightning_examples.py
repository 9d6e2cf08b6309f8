"""The examples of Lightning run, under launchers; a hung rank is ended, and the training goes on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.lightning import run
from tests.harness.process.host import free_ports
from tests.harness.process.job import Template
from tests.harness.process.launch import FORKING_LAUNCHER, FORKING_TORCHRUN, ForkedProcess
from tests.harness.process.monitored import environment_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "lightning"
LIMIT = 180


@pytest.fixture(scope="module")
def lightning_template() -> Iterator[Template]:
    with closing(Template(Path(run.__file__).with_name("template.py"))) as template:
        yield template


def launched(template: Template, folder: Path, *arguments: str, module: str = FORKING_LAUNCHER) -> tuple[int, str]:
    """Run an example under the launcher, or under torchrun; both are forked from the template."""
    environment = environment_of(folder, OMP_NUM_THREADS="1")
    options = ["--nproc-per-node", "2", *arguments]
    with ForkedProcess(template, module, options, environment, stderr=subprocess.STDOUT) as launcher:
        try:
            out, _ = launcher.communicate(timeout=LIMIT)
        finally:
            launcher.kill()
    return launcher.returncode, out


def test_the_callback_has_a_hung_rank_ended_and_the_training_goes_on(
    lightning_template: Template, tmp_path: Path
) -> None:
    example = [str(EXAMPLES / "callback.py"), "--folder", str(tmp_path / "run"), "--faults", "1:12:backward=hang_sleep"]
    options = ("--ft-warm-workers", "off", "--max-restarts", "1", "--ft-rank-section-timeouts", "step:5")
    code, output = launched(lightning_template, tmp_path, *options, *example)
    assert code == 0, output
    assert "is hung: section 'step' open for 5." in output
    assert len(re.findall(r"rank \d begins anew", output)) == 2
    assert len(re.findall(r"rank \d begins from last.ckpt", output)) == 2
    assert len(re.findall(r"rank \d is done after step 72: 0\.\d\d", output)) == 2
    assert (tmp_path / "run" / "ft_timeouts.json").exists()


def test_a_sharded_training_goes_on_in_its_processes_after_an_exception(
    lightning_template: Template, tmp_path: Path
) -> None:
    example = [str(EXAMPLES / "in_process.py"), "--folder", str(tmp_path / "run"), "--fully-sharded"]
    place = ("--master-addr", "127.0.0.1", "--master-port", str(free_ports()))  # whose successor is free as well
    options = (*place, *example, "--faults", "1:12:backward=exception")
    code, output = launched(lightning_template, tmp_path, *options, module=FORKING_TORCHRUN)
    assert code == 0, output
    done = re.findall(r"rank \d of 2 is done after step 72: 0\.\d\d; restart 1 in \S+ ms: EXCEPTION on rank 1", output)
    assert len(done) == 2, output


def test_a_training_under_the_launcher_goes_on_in_process_without_rank_0(
    lightning_template: Template, tmp_path: Path
) -> None:
    example = [str(EXAMPLES / "in_process.py"), "--folder", str(tmp_path / "run"), "--faults", "0:12:optimizer=kill"]
    code, output = launched(lightning_template, tmp_path, "--ft-warm-workers", "off", *example)
    assert code == 0, output
    assert "in-process restart continues without rank 0" in output
    assert re.search(r"rank 0 of 1 is done after step \d+: 0\.\d\d; restart 1 .*lost: initial ranks \[0\]", output), (
        output
    )
