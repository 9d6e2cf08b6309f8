"""The guide, followed literally: a script that it does not contain, converted by it, survives the loss of rank 0."""

import os
import pathlib
import re
import signal
import subprocess

import torch

from nvrx_core.events import timeline
from nvrx_core.store import serve
from tests.harness.process.host import free_ports
from tests.harness.process.job import Template
from tests.harness.process.launch import RUN_SCRIPT, ForkedProcess

HERE = pathlib.Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "how-to" / "plain-pytorch.md"
PLAIN, CONVERTED = HERE / "guide" / "plain.py", HERE / "guide" / "converted.py"
STEPS = re.compile(r"^## (\d)\. ", re.MULTILINE)
OF_A_STEP = re.compile(r"  # step (\d)$")
RANKS, EPOCHS, LIMIT = 3, 12, 120


def test_each_line_that_the_conversion_adds_belongs_to_a_step_of_the_guide() -> None:
    before = {line.strip() for line in PLAIN.read_text().splitlines()}
    after = CONVERTED.read_text().partition('"""\n')[2].splitlines()
    added = [line for line in after if line.strip() not in before]
    assert not [line for line in added if not OF_A_STEP.search(line)]
    steps = {OF_A_STEP.search(line)[1] for line in added}
    start_it = {STEPS.findall(GUIDE.read_text())[-1]}
    assert steps | start_it == set(STEPS.findall(GUIDE.read_text()))


def start(template: Template, folder: pathlib.Path, endpoint: str) -> list[ForkedProcess]:
    """The commands of the guide's last step, with all output in one pipe for each rank."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NVRX_", "TORCHELASTIC_"))}
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports()), "WORLD_SIZE": str(RANKS)}
    job |= {"NVRX_STORE_ENDPOINT": endpoint, "NVRX_EVENTS_DIR": str(folder / "events"), "OMP_NUM_THREADS": "1"}
    script = [str(CONVERTED), "--epochs", str(EPOCHS), "--workers", "1"]
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS))
    return [
        ForkedProcess(template, RUN_SCRIPT, script, {**clean, **job, **rank}, str(folder), stderr=subprocess.STDOUT)
        for rank in ranks
    ]


def outputs_after_the_loss_of_rank_0(ranks: list[ForkedProcess]) -> list[str]:
    """Kill rank 0 when it has written its second checkpoint, which is before it prints the third epoch."""
    first, *others = ranks
    try:
        assert first.stdout is not None
        assert any(line.startswith("epoch 2 ") for line in first.stdout)
        first.kill()
        return [rank.communicate(timeout=LIMIT)[0] for rank in others]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_the_converted_script_continues_without_rank_0(template: Template, tmp_path: pathlib.Path) -> None:
    with serve() as server:
        ranks = start(template, tmp_path, server.endpoint)
        told = "".join(outputs_after_the_loss_of_rank_0(ranks))
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 0, 0], told
    (restart,) = timeline.restarts(timeline.read(tmp_path / "events"))
    assert (restart.cause["interruption"], restart.culprits, restart.lost) == ("TERMINATED", (0,), (0,))
    epochs = [int(epoch) for epoch in re.findall(r"^epoch (\d+) on 2 ranks", told, re.MULTILINE)]
    assert epochs == list(range(epochs[0], EPOCHS))
    assert 1 < epochs[0] < EPOCHS - 1, "it has begun anew, or there was nothing left to do"
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", told)]
    assert losses[-1] < 0.2
    assert torch.load(tmp_path / "rings.pt")["epoch"] == EPOCHS - 1
