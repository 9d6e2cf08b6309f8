"""The settings of a verification."""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_lightning.verification.errors import VerificationError

__all__ = ["VerifySettings"]


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """The settings of a verification.

    Attributes:
        epochs: the epochs of each fit, at most.
        batches: the training batches of each epoch, at most.
        hooks: the names of the hooks to inject faults at; empty for all.
        every: inject one at each hook of each object, and one at its first call, too.
        limit: seconds for one fit.
        at_once: fits that run at once; 0 for half the number of CPUs.
        resume: "memory" or "checkpoint": what restarts go on from; "" for what the strategy says.

    Raises:
        VerificationError: for a value that is not positive, or another `resume`.
    """

    epochs: int = 3
    batches: int = 6
    hooks: tuple[str, ...] = ()
    every: bool = False
    limit: float = 120.0
    at_once: int = 0
    resume: str = ""

    def __post_init__(self) -> None:
        for name in ("epochs", "batches", "limit"):
            if not getattr(self, name) > 0:
                raise VerificationError(f"{name}={getattr(self, name)!r}: write a number above 0")
        if self.resume not in {"", "memory", "checkpoint"}:
            raise VerificationError(f'resume={self.resume!r}: write "memory" or "checkpoint"')
