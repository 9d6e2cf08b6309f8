"""Scripts in the shapes of Megatron-LM, from a stand-in tree: the whole script is what restarts."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from tests.harness.megatron.job import Launch

SHAPES = ("0.16", "0.18")


SCRIPTS = ("pretrain_gpt.py", "pretrain_enabled.py", "alone:pretrain_gpt.py", "package/pretrain.py")
ALWAYS = set(zip(SHAPES * 2, SCRIPTS, strict=True))
"""Each script, half of them in either shape."""


@pytest.mark.parametrize(
    ("shape", "script"),
    [
        pytest.param(*case, marks=[pytest.mark.nightly] * (case not in ALWAYS))
        for case in itertools.product(SHAPES, SCRIPTS)
    ],
)
def test_an_unmodified_script_restarts_in_each_shape(run: Launch, shape: str, script: str) -> None:
    undisturbed, job = run(script, shape=shape), run(script, shape=shape, faults="1:0:3=exception")
    assert set(job.codes.values()) == {0}, job.told()
    assert job.losses() == undisturbed.losses()
    assert job.weights() == undisturbed.weights()
    assert [(line["groups"], line["handler"]) for line in job.entered(1)] == [([], True)] * 2
    assert not job.entered(2)


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_are_those_of_the_iteration_when_rank_0_is_lost(run: Launch, shape: str) -> None:
    job = run("pretrain_gpt.py", world=3, shape=shape, active=2, faults="0:0:3=kill")
    assert job.codes == {0: -signal.SIGKILL, 1: 0, 2: 0}, job.told()
    assert sorted(line["rank"] for line in job.entered(1)) == ["0", "1"]


def test_a_script_that_fails_in_each_iteration_is_given_up(run: Launch) -> None:
    job = run("pretrain_gpt.py", faults="1:0:2000=exception")
    assert job.codes == {0: 1, 1: 1}, job.told()
    assert len(job.entered(2)) == 2
    assert len(job.entered(3)) == 2, "the first iteration has made a step"
    assert not job.entered(4)
    assert "no_progress_limit=3" in job.told()


def test_max_iterations_is_honoured(run: Launch) -> None:
    job = run("pretrain_gpt.py", "--inprocess-max-iterations", "2", faults="1:0:2000=exception")
    assert job.codes == {0: 1, 1: 1}, job.told()
    assert not job.entered(2)
    assert "max_iterations=2" in job.told()


def test_the_client_of_the_rank_monitor_is_made_anew(run: Launch, tmp_path: Path) -> None:
    job = run("pretrain_gpt.py", "--enable-ft-package", "--save", str(tmp_path / "saves"), faults="1:0:3=exception")
    assert set(job.codes.values()) == {0}, job.told()
    told = [line["what_happened"] for line in job.lines("client", initial_rank=1)]
    assert told == ["made", "shut down", "made", "shut down"]
    assert (tmp_path / "saves" / "ft_state.json").read_text().startswith("{")


def test_the_monitor_is_told_of_the_flags_warmup_and_of_the_sections(run: Launch, tmp_path: Path) -> None:
    """The two steps of the warm-up are in no section; each iteration of the loop has an empty checkpointing section."""
    (saves := tmp_path / "saves").mkdir()
    words = ("--enable-ft-package", "--ft-num-warmup-iters", "2", "--save", str(saves))
    job = run("pretrain_gpt.py", *words, "--save-interval", "100", faults="1:0:3=exception")
    assert set(job.codes.values()) == {0}, job.told()
    last = [line for line in job.lines("client") if line["what_happened"] == "shut down"][-2:]
    assert [line["warmup"] for line in last] == [2, 2]
    assert [line["sections"] for line in last] == [{"setup": 1, "checkpointing": 6, "step": 4}] * 2


def test_sys_exit_of_all_ranks_is_a_clean_end(run: Launch) -> None:
    job = run("pretrain_gpt.py", "--exit-at", "3")
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert not job.entered(1)


def test_a_peer_lost_while_the_tracker_file_is_written_leaves_it_whole(run: Launch, tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    job = run("pretrain_gpt.py", "--save", str(saves), world=3, active=2, faults="1:0:1000=kill")
    assert job.codes == {0: 0, 1: -signal.SIGKILL, 2: 0}, job.told()
    assert (saves / "latest_checkpointed_iteration.txt").read_text() == "6"
    assert [path.name for path in saves.iterdir() if path.name.endswith(".tmp")] == []
    first = min(line["step"] for line in job.lines("step", iteration=1))
    assert first == 2, "the checkpoint whose tracker was being written is the one that is loaded"


def test_an_evaluation_that_takes_longer_than_a_step_is_no_hang(run: Launch) -> None:
    """It has three steps, of three seconds each."""
    job = run("pretrain_gpt.py", "--eval-interval", "4", soft=8.0, hard=24.0, slow_save=3.0)
    assert set(job.codes.values()) == {0}, job.told()
    assert not job.entered(1), job.told()


def test_without_the_flag_the_script_runs_as_it_is(run: Launch) -> None:
    job = run("pretrain_gpt.py", restart=False)
    assert set(job.codes.values()) == {0}, job.told()
    assert len(job.entered(-1)) == 2


@pytest.mark.parametrize("script", ["pretrain_gpt.py", "pretrain_enabled.py", "alone:pretrain_gpt.py"])
def test_one_line_at_the_start_says_what_is_installed(run: Launch, script: str) -> None:
    job = run(script)
    assert set(job.codes.values()) == {0}, job.told()
    (line,) = [line for line in job.errors(0).splitlines() if "installed in megatron-core" in line]
    assert line.startswith("INFO:nvrx_megatron:installed in megatron-core 0."), line
    assert "the tracker file is written atomically" in line
    assert "NOT installed" not in line
    assert "installed in megatron-core" not in job.errors(1)


def test_a_name_of_megatron_that_has_moved_is_reported_by_its_consequence(run: Launch, tmp_path: Path) -> None:
    job = run("pretrain_gpt.py", "--save", str(tmp_path / "saves"), shape="moved", faults="1:0:3=exception")
    assert set(job.codes.values()) == {0}, job.told()
    (line,) = [line for line in job.errors(0).splitlines() if "NOT installed" in line]
    assert line.startswith("WARNING:nvrx_megatron:"), line
    missing = line.partition("NOT installed: ")[2]
    assert "the tracker file is not written atomically" in missing
    assert "an evaluation that exceeds --inprocess-soft-timeout is a hang" in missing
    assert "ft_state.json is written atomically" in line.partition("NOT installed: ")[0]
