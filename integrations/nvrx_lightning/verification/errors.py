"""The errors of a verification: what is wrong with the function under test, and what to write instead."""

from __future__ import annotations

__all__ = ["VerificationError"]


class VerificationError(ValueError):
    """The training cannot be verified as it is; the message says what to write."""
