"""A single rank that saves by `AtomicCheckpoint` after each step until it is killed, and resumes from the newest one.

Run with the kind of save, the folder of the checkpoints, the file of its account, and what happens: "killed" waits for
that; a disk fault is injected once, in the third save; "damage" is done to the fourth checkpoint, with which the
program ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import nvrx_megatron
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from megatron.core import dist_checkpointing

from examples.megatron import on_cpu
from tests.harness.megatron.saves import hold_results_in_a_fork
from tests.harness.process.workers.disk import DAMAGES, TROUBLES, mount_small_disk

__all__: list[str] = []

WEIGHTS = 4096
THIRD, FOURTH = 3, 4


def sharded(weights: torch.Tensor) -> Any:
    return {"weights": dist_checkpointing.ShardedTensor.from_rank_offsets("weights", weights), "step": 0}


KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sync": (
        lambda weights, folder: dist_checkpointing.save(sharded(weights), str(folder)),
        lambda weights, folder: dist_checkpointing.load(sharded(weights), str(folder))["weights"],
    ),
    "torch": (
        lambda weights, folder: dcp.save({"weights": weights}, checkpoint_id=str(folder)),
        lambda weights, folder: dcp.load({"weights": weights}, checkpoint_id=str(folder)) or weights,
    ),
}
"""For each kind of save, how it saves and how it loads."""


def main(kind: str, folder: Path, account: Path, trouble: str) -> None:
    told = os.open(account, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    say = lambda text: os.write(told, f"{text}\n".encode())  # noqa: E731
    if kind == "sync":
        hold_results_in_a_fork()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if trouble == "full":
        mount_small_disk(folder, b"size=512k")
    checkpoints = nvrx_megatron.AtomicCheckpoint(folder, keep=2, checksums=True)
    save, load = KINDS[kind]
    weights = torch.zeros(WEIGHTS)
    first = resume(checkpoints, load, weights)
    say(f"found {first}")
    for step in count(first + 1):
        weights.fill_(step)
        say(f"begin {step}")
        if trouble in TROUBLES and step == THIRD:
            with failing(TROUBLES[trouble](folder)):
                checkpoints.save(step, lambda folder: save(weights, folder))
            say(f"found {resume(checkpoints, load, torch.zeros(WEIGHTS))}")
            (folder / "ballast").unlink(missing_ok=True)
        checkpoints.save(step, lambda folder: save(weights, folder))
        say(f"saved {step}")
        if trouble != "killed" and step == FOURTH:
            if trouble == "damage":
                for _ in damage_newest(checkpoints):
                    say(f"found {resume(checkpoints, load, torch.zeros(WEIGHTS))}")
            say(f"found {resume(checkpoints, load, torch.zeros(WEIGHTS))}")
            return


def resume(checkpoints: Any, load: Callable[..., Any], weights: torch.Tensor) -> int:
    """Load the newest checkpoint; its weights are those of its step."""
    found = checkpoints.latest()
    if found is None:
        return 0
    step, folder = found
    if not torch.equal(load(weights, folder), torch.full((WEIGHTS,), float(step))):
        raise AssertionError(f"the checkpoint of step {step} is that of another")
    return int(step)


def damage_newest(checkpoints: nvrx_megatron.AtomicCheckpoint) -> Iterator[None]:
    """Damages the weights of the newest checkpoint in several ways in turn, and restores them at the end."""
    found = checkpoints.latest()
    assert found is not None
    weights = max(found[1].iterdir(), key=lambda path: path.stat().st_size)
    content = weights.read_bytes()
    for damage in DAMAGES.values():
        weights.write_bytes(damage(content))
        yield
    weights.unlink()
    yield
    weights.write_bytes(content)


@contextmanager
def failing(trouble: AbstractContextManager[None]) -> Iterator[None]:
    """A save in which the disk fails; the error says where and what."""
    try:
        with trouble:
            yield
    except BaseException as error:  # torch's CheckpointException is no Exception
        print(f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
    else:
        raise AssertionError("the save succeeded")


if __name__ == "__main__":
    torch.set_num_threads(1)
    on_cpu.install()
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
