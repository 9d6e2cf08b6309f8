"""The advanced example survives what `--faults` plants, and learns what it would have learned undisturbed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from nvrx_core.events import timeline
from tests.harness.process.host import free_ports
from tests.harness.process.job import Template
from tests.harness.process.launch import FORKING_TORCHRUN, RUN_SCRIPT, ForkedProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "inprocess" / "advanced_example.py"
LIMIT = 120
STEPS, MORE_STEPS = 60, 80


class Run(NamedTuple):
    """What a run left."""

    folder: Path
    output: str
    code: int

    @property
    def restarts(self) -> list[tuple[object, list[int], list[int]]]:
        """Cause, culprits and lost ranks of each restart."""
        told = timeline.restarts(timeline.read(self.folder / "events"))
        return [(restart.cause["interruption"], list(restart.culprits), list(restart.lost)) for restart in told]

    @property
    def losses(self) -> list[float]:
        return torch.load(self.folder / "checkpoint.pt")["losses"]


def run(template: Template, folder: Path, module: str, *arguments: str) -> Run:
    """Run a module with the example, which the template forks."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NVRX_", "TORCHELASTIC_"))}
    environment = clean | {"OMP_NUM_THREADS": "1"}
    with ForkedProcess(template, module, arguments, environment, stderr=subprocess.STDOUT) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    return Run(folder, output, process.returncode)


def undisturbed(steps: int) -> list[float]:
    """The losses of the same training in one process."""
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    losses = []
    for step in range(steps):
        rows = torch.randn(96, 16, generator=torch.Generator().manual_seed(step))
        loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(0.1 * gradient)
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def trained(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("advanced")
    options = ["--ranks", "4", "--steps", str(STEPS), "--faults", "1:0:25=kill, 0:1:45=exception"]
    return run(template, folder, RUN_SCRIPT, str(EXAMPLE), "--folder", str(folder), *options)


def test_a_reserve_takes_the_place_of_a_killed_rank(trained: Run) -> None:
    assert trained.code == 0, trained.output
    assert trained.restarts == [("TERMINATED", [1], [1]), ("EXCEPTION", [0], [])], trained.output
    assert "exit codes of the ranks: [0, -9, 0, 0]" in trained.output
    assert "initial rank 3 is rank 1 of 3 from step 20 on" in trained.output
    assert "initial rank 3 is rank 1 of 3 from step 40 on" in trained.output


def test_each_step_is_counted_once(trained: Run) -> None:
    assert trained.losses == pytest.approx(undisturbed(STEPS), rel=1e-3, abs=1e-6)
    assert re.search(rf"^{STEPS} steps, loss 14\.\d+ -> \S+e-\d+$", trained.output, re.MULTILINE)
    logs = {f"monitor-{rank}.log" for rank in range(4)}
    assert {path.name for path in trained.folder.iterdir()} == {"checkpoint.pt", "events", *logs}


def test_under_torchrun_it_goes_on_from_there_through_a_hang(template: Template, trained: Run) -> None:
    port = ["--master-addr", "127.0.0.1", "--master-port", str(free_ports())]
    launcher = ["--nproc-per-node", "2", "--max-restarts", "0", *port, str(EXAMPLE), "--folder", str(trained.folder)]
    options = ["--reserves", "0", "--steps", str(MORE_STEPS), "--soft-timeout", "3", "--faults", "1:0:65=hang_sleep"]
    resumed = run(template, trained.folder, FORKING_TORCHRUN, *launcher, *options)
    assert resumed.code == 0, resumed.output
    assert resumed.restarts[2:] == [("SOFT_TIMEOUT", [1], [])], resumed.output
    assert "initial rank 1 is rank 1 of 2 from step 60 on" in resumed.output
    assert resumed.losses == pytest.approx(undisturbed(MORE_STEPS), rel=1e-3, abs=1e-6)
