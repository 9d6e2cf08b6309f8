"""Trains with `FaultToleranceCallback`, under a launcher or alone: `reporting.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nvrx_lightning import FaultToleranceCallback

from nvrx_core.progress import monitored
from nvrx_core.progress.page import ProgressField, SectionField
from tests.harness.lightning.trainings import Model, loader, pl, say, trainer


class Spy(pl.Callback):  # type: ignore[misc,name-defined]
    """Prints the progress page at the end of the training."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if (rank := monitored.current()) is None:
            return
        words = rank.page.words
        sections = {
            name: [words[slot + SectionField.COUNT], words[slot + SectionField.LONGEST] > 0]
            for name, slot in rank.page.sections().items()
        }
        say("page", sections=sections, heartbeats=words[ProgressField.HEARTBEATS])


class Recording(pl.profilers.Profiler):  # type: ignore[misc,name-defined]
    """The user's profiler: records the actions reported to it."""

    def __init__(self) -> None:
        super().__init__()
        self.actions, self.open = set[str](), list[str]()

    def start(self, action_name: str) -> None:
        self.actions.add(action_name)
        self.open.append(action_name)

    def stop(self, action_name: str) -> None:
        self.open.remove(action_name)


def main() -> None:
    folder = Path(sys.argv[1])
    made = trainer(folder, FaultToleranceCallback(), Spy(), profiler=Recording())
    before = made.profiler
    made.fit(Model(), loader(), loader(3))
    say("actions", names=sorted(before.actions), open=before.open)
    say("fitted", step=made.global_step, same_profiler=made.profiler is before, watched=monitored.current() is not None)


if __name__ == "__main__":
    main()
