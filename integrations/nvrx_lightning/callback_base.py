"""Base class, preemption check and logger of a callback for both `lightning.pytorch` and `pytorch_lightning`."""

from __future__ import annotations

import logging
from typing import Any

from nvrx_lightning.families import family_of, imported, lookup, preferred

__all__ = ["callback_class", "is_preemption", "logger_of"]


def callback_class() -> type[Any]:
    """Return the base class for a callback: `Callback` of the family already imported, or of both.

    Raises:
        ImportError: when Lightning is not installed.
    """
    bases = tuple(lookup(family, "callbacks.Callback") for family in imported() or [preferred()])
    return bases[0] if len(bases) == 1 else type("Callback", bases, {"__module__": __name__})


def is_preemption(exception: BaseException) -> bool:
    """Whether this is the exception by which Lightning ends a run after SIGTERM."""
    kinds = (lookup(family, "utilities.exceptions.SIGTERMException") for family in imported())
    return any(isinstance(exception, kind) for kind in kinds)


def logger_of(trainer: Any) -> logging.Logger:
    """Return a logger that writes where the trainer's logger does."""
    return logging.getLogger(f"{family_of(type(trainer))}.nvrx")
