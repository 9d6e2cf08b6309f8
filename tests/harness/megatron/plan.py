"""The plan of a test job, as text in the environment."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass

from nvrx_core.testing import Schedule

__all__ = ["VARIABLE", "Plan"]

VARIABLE = "NVRX_TEST_MEGATRON"


@dataclass(frozen=True)
class Plan:
    """A training of a tiny GPT.

    Attributes:
        tp, pp: tensor and pipeline parallel sizes; the rest of the ranks is data parallel.
        active: how many ranks train; None for all.
        granularity: of a restart, "rank" or "node".
        optimizer: "megatron"; "torch" for its Adam, "sgd", which has no state.
        distributed: use Megatron's DistributedOptimizer.
        steps: how many.
        save_every: steps between two checkpoints, 0 for none.
        saves: how: "sync", "async" or "persistent" by megatron-core, "torch" by torch's own.
        forks_results: the process of the writers' results is forked: a spawned one imports torch and megatron-core.
        slow_save: seconds that a save takes besides.
        faults: a schedule's text.
        soft, hard: timeouts in seconds.
        stop_writers: stop the processes that write in the background, for the first iteration.
        nodes: how many nodes the ranks stand for, on one host.
        restart: whether a fault restarts.
        live: the flag of state in memory; "" leaves it out.
        precision: "fp32", "bf16" or "fp16" of the parameters.
        dropout: of the model; it draws random numbers of each tensor parallel rank.
        shape: of the stand-in tree: that of 0.16 or 0.18, or "moved", where names of Megatron-LM have changed.
    """

    tp: int = 1
    pp: int = 1
    active: int | None = None
    granularity: str = "rank"
    optimizer: str = "megatron"
    distributed: bool = False
    steps: int = 6
    save_every: int = 0
    saves: str = "sync"
    forks_results: bool = False
    slow_save: float = 0.0
    faults: str = ""
    soft: float = 20.0
    hard: float = 30.0
    stop_writers: bool = False
    nodes: int = 1
    restart: bool = True
    shape: str = "0.18"
    live: str = ""
    precision: str = "fp32"
    dropout: float = 0.0

    @classmethod
    def of_environment(cls) -> Plan:
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(dataclasses.asdict(self)), "NVRX_TEST_SHAPE": self.shape}

    def schedule(self) -> Schedule:
        return Schedule.parse(self.faults)

    def command_line(self) -> list[str]:
        """The flags that the plan stands for."""
        active = [] if self.active is None else ["--inprocess-active-world-size", str(self.active)]
        times = [
            "--inprocess-soft-timeout", str(self.soft), "--inprocess-hard-timeout", str(self.hard),
            "--inprocess-heartbeat-interval", "1", "--inprocess-heartbeat-timeout", "10",
        ]  # fmt: skip
        restart = ["--inprocess-restart"] if self.restart else []
        live = ["--nvrx-live-state", self.live] if self.live else []
        return [*restart, *live, "--inprocess-granularity", self.granularity, *active, *times]
