"""The exit codes of the launcher; those of a lost store and of wrong usage are the package's."""

from __future__ import annotations

from typing import Final

from nvrx_core.errors import STORE_LOST, USAGE

__all__ = ["FAILED", "REFUSED", "SIGNALLED", "STORE_LOST", "USAGE"]

FAILED: Final = 1
"""Workers have failed for the last time, or the job cannot go on."""
REFUSED: Final = 93
"""The job is not to be started again: a rank has asked for that, or restarts make no progress."""
SIGNALLED: Final = 128
"""Added to the number of a signal that has ended the launcher."""
