"""Values as short texts that are equal if and only if the values are, bit by bit."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import torch

__all__ = ["contents", "entries", "generators"]

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_MAX_TEXT: Final = 400


def contents(value: Any) -> str | None:
    """Return the text of a value; None if it has parts that cannot be compared, such as a module or a file."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, _PLAIN):
        return _shortened(repr(value))
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return _hashed(f"numpy {getattr(value, 'dtype', '')}{list(getattr(value, 'shape', ()))}", value.tobytes())
    if isinstance(value, Mapping):
        parts = [(contents(key), contents(each)) for key, each in value.items()]
        known = [f"{key}: {each}" for key, each in parts if key is not None and each is not None]
        return _container(value, known) if len(known) == len(parts) else None
    if isinstance(value, list | tuple | deque | set | frozenset):
        texts = [each for each in map(contents, value) if each is not None]
        texts = sorted(texts) if isinstance(value, set | frozenset) else texts
        return _container(value, texts) if len(texts) == len(value) else None
    return None


def entries(value: Any, name: str = "") -> dict[str, str]:
    """Return the texts of a nested value's leaves, such as a `state_dict`'s, by their path."""
    if isinstance(value, Mapping):
        items = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(number), each) for number, each in enumerate(value)]
    else:
        text = contents(value)
        return {} if text is None else {name: text}
    found = {} if items or not name else {name: "empty"}
    for key, each in items:
        found |= entries(each, f"{name}.{key}" if name else key)
    return found


def generators() -> str:
    """Return the text of the process's random states."""
    import random
    import sys

    states = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode()]
    if "numpy" in sys.modules:
        _, keys, *position = sys.modules["numpy"].random.get_state(legacy=True)
        states += [repr(position).encode(), keys.tobytes()]
    return " ".join(hashlib.sha1(each, usedforsecurity=False).hexdigest()[:8] for each in states)


def _tensor(value: torch.Tensor) -> str:
    local = value.to_local() if hasattr(value, "to_local") else value  # of a DTensor
    local = local.detach().cpu()
    if local.numel() == 1 and not local.is_complex():
        return repr(local.item())
    if local.is_sparse or local.is_quantized:
        return _hashed(str(local.dtype), repr(local).encode())
    data = (
        local.contiguous().view(torch.uint8) if local.dim() and local.numel() else local.reshape(-1).view(torch.uint8)
    )
    return _hashed(f"{str(local.dtype).removeprefix('torch.')}{list(local.shape)}", data.numpy().tobytes())


def _hashed(kind: str, data: bytes) -> str:
    return f"{kind} {hashlib.sha1(data, usedforsecurity=False).hexdigest()[:12]}"


def _container(value: Any, parts: list[str]) -> str:
    whole = f"{type(value).__name__} of {len(parts)}"
    return f"{whole}: {_shortened(', '.join(parts))}" if parts else whole


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else _hashed(text[: _MAX_TEXT - 14] + " ...", text.encode())
