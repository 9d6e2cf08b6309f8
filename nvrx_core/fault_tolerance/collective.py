"""The longest intervals over all ranks: the only module of this package that uses torch, and only when it is called."""

from __future__ import annotations

import json
import sys
from typing import Any

from nvrx_core.fault_tolerance.timeouts import Measured

__all__ = ["maxima"]


def maxima(measured: Measured) -> Measured:
    """Return the longest intervals over all ranks; those of this rank if there is no process group.

    Ranks may have measured different sections: their names are exchanged first.

    Raises:
        RuntimeError: when the backend is neither gloo nor nccl.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return measured
    device = _device(torch)
    names = _all_names(torch, device, sorted(measured.sections))
    own = [measured.initial, measured.subsequent, measured.out_of_section]
    values = torch.tensor(
        own + [measured.sections.get(name, 0.0) for name in names], dtype=torch.float64, device=device
    )
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
    initial, subsequent, out_of_section, *longest = values.tolist()
    return Measured(initial, subsequent, out_of_section, dict(zip(names, longest, strict=True)))


def _device(torch: Any) -> Any:
    backend = torch.distributed.get_backend()
    if "nccl" in backend:
        return torch.device("cuda")
    if "gloo" in backend:
        return torch.device("cpu")
    raise RuntimeError(f"timeouts are calculated over gloo or nccl; the process group's backend is {backend}")


def _all_names(torch: Any, device: Any, names: list[str]) -> list[str]:
    """Return the names that any rank has, in one order."""
    text = json.dumps(names).encode()
    longest = torch.tensor([len(text)], device=device)
    torch.distributed.all_reduce(longest, op=torch.distributed.ReduceOp.MAX)
    own = torch.tensor(list(text.ljust(int(longest.item()))), dtype=torch.uint8, device=device)
    texts = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(texts, own)
    return sorted({name for each in texts for name in json.loads(bytes(each.tolist()))})
