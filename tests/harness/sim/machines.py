"""Hypothesis state machines: any order of inputs to a production machine, shrunk to the shortest that breaks a rule.

They are much slower than the checker and the simulation, but give failures that are easy to read.
"""

from __future__ import annotations

from hypothesis import settings

from .interruption_machine import Interrupting
from .liveness_machines import Leases, Watching
from .round_machine import Rounds

__all__ = ["MACHINES", "SETTINGS", "Interrupting", "Leases", "Rounds", "Watching"]

SETTINGS = settings(max_examples=500, stateful_step_count=40, deadline=None, database=None)
MACHINES = (Rounds, Interrupting, Leases, Watching)
