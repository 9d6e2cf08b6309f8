"""Prints the timeouts of two ranks at the start of a training, and at its end: `learning.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nvrx_lightning import FaultToleranceCallback

from nvrx_core.fault_tolerance import RankMonitorClient
from nvrx_core.fault_tolerance.attachment import AttachedRank
from nvrx_core.progress import monitored
from nvrx_core.progress.page import ProgressField
from tests.harness.lightning.trainings import Model, loader, pl, say, trainer


class Spy(pl.Callback):  # type: ignore[misc,name-defined]
    """Prints the timeouts in force."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        tell("start")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        tell("end")


def tell(event: str) -> None:
    rank = monitored.current()
    assert isinstance(rank, AttachedRank)
    client = rank.owner
    assert isinstance(client, RankMonitorClient)
    sections = client.section_timeouts
    say(
        event,
        learned=sorted(sections.calculated_sections),
        sections=dict(sections.section),
        out_of_section=sections.is_out_of_section_calculated,
        heartbeat=client.hb_timeouts.were_calculated,
        initial=client.hb_timeouts.initial,
        enforced=client.page[ProgressField.HEARTBEAT_TIMEOUT] / 1e9,
    )


def main() -> None:
    folder = Path(sys.argv[1])
    callback = FaultToleranceCallback(exp_dir=folder, minimum_timeout=40.0)
    checkpoints = pl.callbacks.ModelCheckpoint(folder / "checkpoints", save_last=True)
    last = folder / "checkpoints" / "last.ckpt"
    made = trainer(folder, callback, checkpoints, Spy(), max_epochs=6 if last.exists() else 3)
    made.fit(Model(), loader(), loader(3), ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main()
