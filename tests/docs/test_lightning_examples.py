"""The examples of Lightning run as their users run them; a hung rank is ended, and the training goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.harness.process.monitored import environment_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "lightning"
LIMIT = 180


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment_of(folder, OMP_NUM_THREADS="1"), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_the_callback_has_a_hung_rank_ended_and_the_training_goes_on(tmp_path: Path) -> None:
    example = [str(EXAMPLES / "callback.py"), "--folder", str(tmp_path / "run")]
    launcher = ["-m", "nvrx_launcher", "--nproc-per-node", "2", "--max-restarts", "1"]
    code, output = run(
        tmp_path, *launcher, "--ft-rank-section-timeouts", "step:5", *example, "--faults", "1:12:backward=hang_sleep"
    )
    assert code == 0, output
    assert "is hung: section 'step' open for 5." in output
    assert len(re.findall(r"rank \d begins anew", output)) == 2
    assert len(re.findall(r"rank \d begins from last.ckpt", output)) == 2
    assert len(re.findall(r"rank \d is done after step 72: 0\.\d\d", output)) == 2
    assert (tmp_path / "run" / "ft_timeouts.json").exists()


def test_a_sharded_training_goes_on_in_its_processes_after_an_exception(tmp_path: Path) -> None:
    code, output = run(
        tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(EXAMPLES / "in_process.py"), "--folder", str(tmp_path / "run"),
        "--fully-sharded", "--faults", "1:12:backward=exception",
    )  # fmt: skip
    assert code == 0, output
    done = re.findall(r"rank \d of 2 is done after step 72: 0\.\d\d; restart 1 in \S+ ms: EXCEPTION on rank 1", output)
    assert len(done) == 2, output


def test_a_training_under_the_launcher_goes_on_in_process_without_rank_0(tmp_path: Path) -> None:
    code, output = run(
        tmp_path, "-m", "nvrx_launcher", "--nproc-per-node", "2", str(EXAMPLES / "in_process.py"),
        "--folder", str(tmp_path / "run"), "--faults", "0:12:optimizer=kill",
    )  # fmt: skip
    assert code == 0, output
    assert "in-process restart continues without rank 0" in output
    assert re.search(r"rank 0 of 1 is done after step \d+: 0\.\d\d; restart 1 .*lost: initial ranks \[0\]", output), (
        output
    )
