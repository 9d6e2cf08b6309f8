"""Whether a training has come to its end, or was only interrupted. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ending"]


@dataclass(frozen=True)
class Ending:
    """How a training has ended.

    Attributes:
        returned: `fit` has come to its regular end.
        steps, max_steps: optimizer steps, and their limit; -1 for none.
        epochs, max_epochs: epochs, and their limit; -1 or None for none.
        terminated: SIGTERM was received.
        trial: it was a `fast_dev_run`.
    """

    returned: bool
    steps: int
    max_steps: int
    epochs: int
    max_epochs: int | None
    terminated: bool
    trial: bool

    def is_final(self) -> bool:
        """Whether no further job is needed: a limit was reached, or something has asked to stop that was no signal."""
        limit_reached = 0 <= self.max_steps <= self.steps or (
            self.max_epochs is not None and 0 <= self.max_epochs <= self.epochs
        )
        return self.returned and not self.trial and (limit_reached or not self.terminated)
