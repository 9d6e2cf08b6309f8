"""What a callback needs that has two names: those of the packages `lightning.pytorch` and `pytorch_lightning`."""

from __future__ import annotations

import logging
from typing import Any

from nvrx_lightning.families import family_of, imported, lookup, preferred

__all__ = ["callback_class", "is_preemption", "logger_of"]


def callback_class() -> type[Any]:
    """Return the class that a callback derives from: that of the family imported already, or of both.

    Raises:
        ImportError: when Lightning is not installed.
    """
    bases = tuple(lookup(family, "callbacks.Callback") for family in imported() or [preferred()])
    return bases[0] if len(bases) == 1 else type("Callback", bases, {"__module__": __name__})


def is_preemption(exception: BaseException) -> bool:
    """Whether Lightning ends a run by this because SIGTERM was received."""
    kinds = (lookup(family, "utilities.exceptions.SIGTERMException") for family in imported())
    return any(isinstance(exception, kind) for kind in kinds)


def logger_of(trainer: Any) -> logging.Logger:
    """Return a logger whose lines appear where those of the trainer do."""
    return logging.getLogger(f"{family_of(type(trainer))}.nvrx")
