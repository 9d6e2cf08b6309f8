"""A mistake in a user's module, as a real script: what is printed is short, and ends at the user's line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.harness.process.job import Template
from tests.harness.process.launch import FORKING_LAUNCHER, RUN_SCRIPT, ForkedProcess

SCRIPT = """\
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from nvrx_lightning import FaultToleranceCallback, InProcessDDPStrategy


class Model(BoringModel):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return self.weighted(loss["loss"]) if {fails} else loss

    def weighted(self, loss, weight=None):
        return loss * weight


if __name__ == "__main__":
    trainer = Trainer(
        accelerator="cpu", devices=2, max_steps=4, limit_val_batches=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, strategy=InProcessDDPStrategy(), callbacks={callbacks},
    )
    trainer.fit(Model())
"""
FIT = "    trainer.fit(Model())\n"
LEAVES_WITH_THE_OTHER = """\
    import atexit, os, pathlib, time

    def leave():
        rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
        pathlib.Path(f"{__file__}.{rank}.{attempt}").touch()
        while not pathlib.Path(f"{__file__}.{1 - rank}.{attempt}").exists():
            time.sleep(0.02)

    atexit.register(leave)
"""
"""Has a rank end when the other has printed its error as well: the launcher ends what is left at the first end."""


def run(script: Path) -> tuple[int, list[str]]:
    """Run the script, which fails and starts its second rank itself; return the exit code and all lines."""
    script.write_text(SCRIPT.format(fails=True, callbacks="[]"))
    with (terminal := script.with_suffix(".txt")).open("w") as written:
        command = [sys.executable, script]
        done = subprocess.run(command, env=environment(), stdout=written, stderr=written, check=False, timeout=120)
    return done.returncode, terminal.read_text().splitlines()


def forked(template: Template, module: str, arguments: Sequence[str], terminal: Path) -> tuple[int, list[str]]:
    """Run a module in a process that has imported Lightning; return the exit code and all lines."""
    with (
        terminal.open("a") as written,
        ForkedProcess(template, module, arguments, environment(), stdout=written, stderr=written) as process,
    ):
        try:
            process.wait(120)
        finally:
            process.kill()
    return process.returncode, terminal.read_text().splitlines()


def environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("NVRX_", "MASTER_"))}
    return ours | {"PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_type_error_is_few_lines_which_end_at_the_users_own(tmp_path: Path) -> None:
    code, lines = run(script := tmp_path / "script.py")
    told = "\n".join(lines)
    assert code == 1
    assert told.count("All distributed processes registered") == 1, told
    lightnings = told.partition("the function failed")[0].splitlines()
    assert len(lines) - len(lightnings) <= 40, told
    assert told.count("but from a checkpoint: the fit has saved no checkpoint in the middle of an epoch") == 1, told
    assert told.count("the function failed on initial rank") == 1, told
    frames = re.findall(r"^  .*$", told.partition("the function failed")[2].partition("TypeError")[0], re.MULTILINE)
    assert re.match(r"  \[\d+ frames of lightning, nvrx_lightning, torch\]", frames[0])
    assert frames[-3:-1] == [f'  File "{script}", line 12, in weighted', "    return loss * weight"]
    assert told.count(f"at {script}:12 on initial rank") == 2, told


def test_a_type_error_under_the_launcher_is_one_traceback_and_a_line_for_each_rank_and_attempt(
    tmp_path: Path, lightning_template: Template
) -> None:
    script, text = tmp_path / "script.py", SCRIPT.replace("strategy=InProcessDDPStrategy()", 'strategy="ddp"')
    text = text.format(fails=True, callbacks="[FaultToleranceCallback()]")
    script.write_text(text.replace(FIT, LEAVES_WITH_THE_OTHER + FIT))
    arguments = ["--nproc-per-node", "2", "--max-restarts", "1", "--ft-warm-workers", "off", str(script)]
    code, lines = forked(lightning_template, FORKING_LAUNCHER, arguments, tmp_path / "terminal.txt")
    told = "\n".join(lines)
    assert code == 1
    ours = [line for line in lines if re.match(r"\[rank\d\]: |.*\[ft_launcher\]", line)]
    assert 20 <= len(ours) <= 40, told
    assert told.count("Traceback") == 1, told
    assert re.search(r"\n\[rank\d\]:   \[\d+ frames of lightning, torch\]\n", told), told
    assert len(re.findall(rf"^\[rank\d\]: \(at {re.escape(str(script))}:12, with the same", told, re.MULTILINE)) >= 2, (
        told
    )
    assert len(re.findall(r"ERROR \[ft_launcher\] rank .* exit code 1: TypeError: ", told)) == 2, told


def test_a_second_callback_is_one_line(tmp_path: Path, lightning_template: Template) -> None:
    (script := tmp_path / "script.py").write_text(
        SCRIPT.format(fails=False, callbacks="[FaultToleranceCallback(), FaultToleranceCallback()]")
    )
    code, lines = forked(lightning_template, RUN_SCRIPT, [str(script)], tmp_path / "terminal.txt")
    assert code == 0, lines
    (told,) = [line for line in lines if "callbacks report to the rank monitor" in line]
    assert told.startswith("2 callbacks report to the rank monitor; only the first one does now: remove this ")
