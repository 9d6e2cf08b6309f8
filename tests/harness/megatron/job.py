"""A job of ranks that train with megatron-core."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.harness.megatron.plan import Plan
from tests.harness.process.job import PATHS, Job, Template

__all__ = ["APEX", "TEMPLATE", "TRAIN", "Launch", "MegatronJob", "MegatronLMJob", "Train"]

SITE = Path(__file__).with_name("site")
APEX = Path(__file__).with_name("packages")
"""A folder with what Megatron-LM imports of Apex to train sequence parallel."""
TEMPLATE = Path(__file__).with_name("template.py")
TRAIN = "tests.harness.megatron.train"


class MegatronJob(Job):
    """One job; `finish` it, then ask for its losses.

    Attributes:
        more: further variables of the ranks' environment.
    """

    more: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def run(cls, template: Template, directory: Path, *, world: int = 2, **plan: Any) -> MegatronJob:
        """Runs a job to its end."""
        job = cls(template, directory, Plan(**plan), world=world)
        job.begin().finish()
        job.clear()
        return job

    def begin(self, module: str = TRAIN, *words: str) -> MegatronJob:
        """Starts the ranks, with these words on their command line."""
        self.start_store()
        of_a_node = self.world // self.plan.nodes
        more = {"LOCAL_WORLD_SIZE": str(of_a_node), "TORCH_CPP_LOG_LEVEL": "error", **self.more}
        for rank in range(self.world):
            environment, output = self.environment(rank, **more), self.directory / f"rank-{rank}"
            self.pids[rank] = self.template.fork(module, words, environment, output)
        return self

    def losses(self) -> dict[tuple[str, int], float]:
        """The loss of each rank and step, from the last iteration that ran the step."""
        return {(line["rank"], line["step"]): line["loss"] for line in self.lines("step") if line["loss"] is not None}

    def weights(self) -> set[float]:
        """The sums of the weights that the ranks had at the end."""
        return {line["sum"] for line in self.lines("weights")}

    def entered(self, iteration: int) -> list[dict[str, Any]]:
        """The records of the ranks on entry to an iteration."""
        return self.lines("enter", iteration=iteration)

    def told(self) -> str:
        """What the ranks wrote to stderr."""
        return "\n".join(self.errors(rank) for rank in range(self.world))


COMMAND = """\
--use-mcore-models --transformer-impl local --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32
--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 4 --lr 1e-3
--lr-decay-style constant --tokenizer-type NullTokenizer --vocab-size 64 --mock-data --split 99,1,0 --eval-iters 0
--eval-interval 1000 --distributed-backend gloo --use-cpu-initialization --no-gradient-accumulation-fusion
--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-persist-layer-norm --hidden-dropout 0
--attention-dropout 0 --log-interval 1 --no-one-logger --num-workers 0 --attention-backend unfused
--distributed-timeout-minutes 1 --tensor-model-parallel-size 2 --inprocess-granularity rank
"""
"""The smallest training of pretrain_gpt.py, without its length and its checkpoints."""
STEPS = ("--train-iters", "6")


class MegatronLMJob(MegatronJob):
    """Ranks that run an unmodified pretrain_gpt.py; the template must not have imported a megatron-core."""

    def train(
        self, tree: str, *more: str, faults: str = "", launched: Sequence[str] = (), saves: bool = True,
        script: str = "pretrain_gpt.py",
    ) -> MegatronLMJob:  # fmt: skip
        """Starts it, from a tree of Megatron-LM."""
        folder = str(self.directory / "saves")
        length = () if "--train-samples" in more else STEPS
        kept = ("--save", folder, "--load", folder, "--save-interval", "2") if saves else ()
        words = [*COMMAND.split(), *length, *kept, *more]
        environment = {
            "NVRX_TEST_MEGATRON_LM": tree, "NVRX_TEST_MEGATRON_FAULTS": faults, "NVRX_TEST_MEGATRON_SCRIPT": script,
            "TORCHDYNAMO_DISABLE": "1",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCH_CPP_LOG_LEVEL": "error", "LOCAL_WORLD_SIZE": str(self.world),
            "PYTHONPATH": os.pathsep.join(map(str, (SITE, *PATHS, tree))),  # for multiprocessing's fork server
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        if launched:
            module = ["-m", "tests.harness.megatron.unmodified", *words]
            environment["NVRX_RUNTIME_DIR"] = str(self.temporary)
            self.run_command("launcher", "-m", "nvrx_launcher", *launched, *module, **environment)
            return self
        if self.own_store:
            self.start_store()
        for rank in range(self.world):
            output = self.directory / f"rank-{rank}"
            own = self.environment(rank, **environment)
            self.pids[rank] = self.template.fork("tests.harness.megatron.unmodified", words, own, output)
        return self

    def states(self) -> dict[tuple[str, int], str]:
        """The digests of parameters, optimizer state and random numbers of each rank after each step."""
        return {(line["rank"], line["step"]): line["state"] for line in self.lines("step")}

    def last_losses(self) -> dict[tuple[str, int], float]:
        """The losses of the steps of the last iteration."""
        last = max(line["iteration"] for line in self.lines("step"))
        return {(line["rank"], line["step"]): line["loss"] for line in self.lines("step", iteration=last)}


Launch = Callable[..., MegatronJob]
Train = Callable[..., MegatronLMJob]
