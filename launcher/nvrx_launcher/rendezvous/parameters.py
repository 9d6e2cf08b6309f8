"""The parameters of a coordinator's decisions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nvrx_launcher.rendezvous.checkpoint_progress import ProgressRules
from nvrx_launcher.rendezvous.restart_budget import PacingRules

__all__ = ["ANY_FAILED", "MIN_HEALTHY", "NOT_RETRIED", "Rules"]

ANY_FAILED: Final = "any-failed"
MIN_HEALTHY: Final = "min-healthy"
NOT_RETRIED: Final = (
    "; all workers have failed before their first step because the script refuses its arguments (code 2), is not "
    "found, does not compile or cannot import a module: that is not retried, unless --ft-retry-usage-errors is true"
)


@dataclass(frozen=True)
class Rules:
    """The parameters of a job.

    Attributes:
        min_nodes: how many nodes a cycle needs.
        max_nodes: how many nodes the first cycle waits for, until the last call is over; under `min-healthy`, the
            maximum number that take part.
        max_restarts: how often the workers are restarted because one has failed.
        restart_policy: `any-failed` or `min-healthy`.
        last_call_timeout: seconds that the first cycle waits for more than `min_nodes` nodes.
        join_timeout: seconds within which `min_nodes` must be ready.
        command: the command of the workers. Empty: commands are not compared.
        same_command: a node with another command is refused.
        pacing: how fast restarts may follow each other.
        host: the host of the launcher that has these rules.
        given: the options that it was given and whose values are the job's, with their values.
        expected_hosts: the hosts of the job, as far as they are known before they join.
        segment: how many nodes of one NVLink domain have consecutive ranks; None: domains do not matter.
        node_ranks: how many node ranks there are, where each node has its own by --node-rank; 0: ranks are not fixed.
        progress: when restarts have been fruitless for too long.
    """

    min_nodes: int
    max_nodes: int
    max_restarts: int
    restart_policy: str = ANY_FAILED
    last_call_timeout: float = 1.0
    join_timeout: float = 600.0
    command: str = ""
    same_command: bool = False
    pacing: PacingRules = field(default_factory=PacingRules)
    host: str = ""
    given: tuple[tuple[str, str], ...] = ()
    expected_hosts: tuple[str, ...] = ()
    segment: int | None = None
    node_ranks: int = 0
    progress: ProgressRules = field(default_factory=ProgressRules)

    @property
    def most_active(self) -> int:
        """How many nodes take part in a cycle at most."""
        return self.max_nodes if self.restart_policy == MIN_HEALTHY else self.min_nodes
