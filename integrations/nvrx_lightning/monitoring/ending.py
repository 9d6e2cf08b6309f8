"""Whether a training has completed or was only interrupted. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ending"]


@dataclass(frozen=True)
class Ending:
    """How a training ended.

    Attributes:
        returned: `fit` ended normally.
        steps, max_steps: optimizer steps, and their limit; -1 for none.
        epochs, max_epochs: epochs, and their limit; -1 or None for none.
        terminated: SIGTERM was received.
        trial: the run was a `fast_dev_run`.
    """

    returned: bool
    steps: int
    max_steps: int
    epochs: int
    max_epochs: int | None
    terminated: bool
    trial: bool

    def is_final(self) -> bool:
        """Whether no further job is needed: a limit was reached, or a stop other than a signal was requested."""
        limit_reached = 0 <= self.max_steps <= self.steps or (
            self.max_epochs is not None and 0 <= self.max_epochs <= self.epochs
        )
        return self.returned and not self.trial and (limit_reached or not self.terminated)
