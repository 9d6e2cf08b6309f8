"""An explicit-state checker: every interleaving of a small job, over the real machines of a round."""

from __future__ import annotations

from typing import Any

from .explorer import Explorer, Figures, Violation
from .job import Config
from .steps import Steps
from .two_calls import TwoCalls

__all__ = ["Checker", "Config", "Figures", "Violation"]


class Checker(Explorer[Any]):
    """Explores one job.

    Args:
        config: the job.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(TwoCalls(config) if config.second else Steps(config))
