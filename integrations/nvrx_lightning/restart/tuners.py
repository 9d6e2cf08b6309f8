"""Lightning's search for a learning rate, which runs at the start of each fit.

It saves a checkpoint, tries values, and loads it again. In an attempt that resumes, Lightning would then go on from
that checkpoint: with the weights of the resumed one, and with the counters and the optimizer of the fit's start.
Lightning's search for a batch size needs no such care: it refuses distributed strategies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from nvrx_lightning.families import lookup
from nvrx_lightning.subclassing import become

__all__ = ["is_of_search", "search_unless_known"]

_FILES: Final = (".lr_find_", ".scale_batch_size_")


def is_of_search(path: object) -> bool:
    """Return whether a checkpoint is that of a search, which loads and removes it itself: no attempt begins from it."""
    return Path(str(path)).name.startswith(_FILES)


def search_unless_known(trainer: Any, family: str, *, resumes: bool) -> None:
    """Choose whether an attempt searches for a learning rate at its start.

    Args:
        trainer: the Trainer.
        family: the Lightning package.
        resumes: the attempt resumes from a checkpoint of this job, which has the learning rate.
    """
    finder = lookup(family, "callbacks.LearningRateFinder")
    for callback in (each for each in trainer.callbacks if isinstance(each, finder)):
        become(callback, searching_unless_known).nvrx_skips = resumes


def searching_unless_known(kind: Any) -> type[Any]:
    """Return a subclass of a search that can be skipped at the start of a fit."""

    class SearchingUnlessKnown(kind):  # type: ignore[misc]
        nvrx_skips = False

        def on_fit_start(self, *arguments: Any) -> None:
            if not self.nvrx_skips:
                super().on_fit_start(*arguments)

    return SearchingUnlessKnown
