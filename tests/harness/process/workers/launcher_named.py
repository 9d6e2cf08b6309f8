"""A worker of a launcher that fails in another way in each cycle, while the other rank waits for it.

Its argument is the list of faults, `name:rank` each, one for a cycle; then a cycle is completed. The ranks meet in
collectives where the name of the fault ends with `+`; without, torch is not imported.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Final


class Killed:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def user_exception() -> None:
    raise LookupError("sample 7 has no label")


def exit_3() -> None:
    sys.exit(3)


def segmentation_fault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def aborted() -> None:
    os.abort()


def missing_module() -> None:
    import no_such_kernels  # type: ignore[import-not-found]  # noqa: F401


def disk_full() -> None:
    with open("/dev/full", "wb", buffering=0) as checkpoint:
        checkpoint.write(b"weights")


def assertion() -> None:
    sizes = {2, 3}
    assert len(sizes) == 1, f"batches differ: {sizes}"


def nan_loss() -> None:
    import torch

    loss = torch.tensor(float("inf")) * 0
    if not torch.isfinite(loss):
        raise RuntimeError(f"loss is {loss.item()} in step 3")


def data_loader() -> None:
    from torch.utils.data import DataLoader

    list(DataLoader(Killed(), num_workers=1))  # type: ignore[arg-type]


def port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as second:
        second.bind(taken.getsockname())


def cuda_out_of_memory() -> None:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB")


FAULTS: Final[dict[str, Callable[[], object]]] = {
    each.__name__: each
    for each in (
        user_exception, exit_3, segmentation_fault, killed, aborted, missing_module, disk_full, assertion, nan_loss,
        data_loader, port_in_use, cuda_out_of_memory,
    )
}  # fmt: skip


def wait_in_a_collective(fault: Callable[[], object]) -> None:
    """The rank that waits fails once the process of the other one has ended: it has not to take its Python down."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    other = os.pidfd_open(int(pids[1 - dist.get_rank()]))
    for step in range(3):
        dist.all_reduce(torch.ones(1))
        print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
    fault()
    try:
        dist.all_reduce(torch.ones(1))
    finally:
        select.select([other], [], [], 60.0)


def main() -> None:
    faults = sys.argv[1].split(",")
    cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if cycle == len(faults):
        return
    name, rank = faults[cycle].split(":")
    fault = FAULTS[name.rstrip("+")] if os.environ["RANK"] == rank else int
    if name.endswith("+"):
        wait_in_a_collective(fault)
    else:
        fault()
        time.sleep(600.0)


if __name__ == "__main__":
    main()
