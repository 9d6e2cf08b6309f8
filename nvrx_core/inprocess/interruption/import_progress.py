"""Progress of an import for which an interruption waits: it adds modules."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["ImportProgress"]


class ImportProgress:
    """Watches the modules of this process.

    Attributes:
        report: called when modules were added since the last observation.
    """

    def __init__(self) -> None:
        self.report: Callable[[], object] = lambda: None
        self._modules = 0

    def observe(self) -> None:
        """Take the present number of modules."""
        before, self._modules = self._modules, len(sys.modules)
        if self._modules > before:
            self.report()
