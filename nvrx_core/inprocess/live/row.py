"""The local state of a rank as a row of bytes: what changes outside of the advance, copied at each vote.

It has random numbers (torch on the CPU and on the parameters' device, Python, NumPy if it is imported), the persistent
buffers of the model, and the `state_dict` of each object that was registered as local. Buffers that are not persistent
are rebuilt with the model.
"""

from __future__ import annotations

import io
import json
import random
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import torch

__all__ = ["NO_STEP", "Stateful", "capture", "declined", "headers_of", "restore"]

_HEADER: Final = struct.Struct("<4sIqIII")
"""`nvL1`, the length of the row, the step, and the lengths of three parts: settings and words of the generators of
Python and NumPy, and the state of the objects."""
_MAGIC: Final = b"nvL1"
_BEGINNING: Final = struct.Struct("<4sIq")
_WORDS: Final = struct.Struct("<625I")
_SETTINGS: Final = json.JSONEncoder(default=lambda words: words.tolist())
_TWISTER: Final = "MT19937"
"""NumPy's generator whose words are no settings."""
HEADER_SIZE: Final = _HEADER.size
_NO_OBJECTS: Final = b"j{}"
NO_STEP: Final = -(2**62)
"""The step of a row that declines the vote."""


class Stateful(Protocol):
    """An object with a state, such as a sampler or a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Take a state over."""


def capture(
    step: int, buffers: Sequence[torch.Tensor], local: Mapping[str, Stateful], device: torch.device
) -> torch.Tensor:
    """Return the local state after a step: bytes, uint8 on the CPU, (length,).

    Args:
        step: the step.
        buffers: the persistent buffers of the model.
        local: the objects.
        device: of the parameters.
    """
    plain, words = _random_numbers()
    objects = _encode({name: each.state_dict() for name, each in local.items()}) if local else _NO_OBJECTS
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    states += [each.detach().reshape(-1).view(torch.uint8) for each in buffers]
    if device.type != "cpu":  # it is read once
        states = [torch.cat([each.to(device) for each in states]).cpu()]
    text = plain + words + objects
    length = HEADER_SIZE + len(text) + sum(each.numel() for each in states)
    text = _HEADER.pack(_MAGIC, length, step, len(plain), len(words), len(objects)) + text
    return torch.cat([torch.frombuffer(bytearray(text), dtype=torch.uint8), *states])


def declined() -> torch.Tensor:
    """Return the row of a rank that declines the vote."""
    return torch.frombuffer(bytearray(_HEADER.pack(_MAGIC, HEADER_SIZE, NO_STEP, 0, 0, 0)), dtype=torch.uint8)


def headers_of(rows: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the length and the step of each row.

    Raises:
        ValueError: when one is no row.
    """
    beginnings = _bytes(torch.cat([each[: _BEGINNING.size] for each in rows]))
    found = []
    for magic, length, step in _BEGINNING.iter_unpack(beginnings):
        if magic != _MAGIC:
            raise ValueError(
                f"what another rank has brought to the vote begins with {magic!r}: it does not run the same nvrx"
            )
        found.append((length, step))
    return found


def restore(
    row: torch.Tensor, buffers: Sequence[torch.Tensor], local: Mapping[str, Stateful], device: torch.device
) -> None:
    """Put the local state back into buffers, objects and generators of random numbers."""
    _, _, _, plain, words, objects = _HEADER.unpack(_bytes(row[:HEADER_SIZE]))
    at = HEADER_SIZE

    def take(size: int) -> torch.Tensor:
        nonlocal at
        at += size
        return row[at - size : at]

    _restore_random_numbers(json.loads(_bytes(take(plain))), _bytes(take(words)))
    states = _decode(_bytes(take(objects)))
    torch.set_rng_state(take(len(torch.get_rng_state())).clone())
    if device.type == "cuda":
        torch.cuda.set_rng_state(take(len(torch.cuda.get_rng_state(device))).clone(), device)
    with torch.no_grad():
        for each in buffers:
            each.copy_(take(each.numel() * each.element_size()).clone().view(each.dtype).view(each.shape))
    for name, state in states.items():
        local[name].load_state_dict(state)


def _bytes(row: torch.Tensor) -> bytes:
    return bytes(row.tolist())  # of a storage, bytes() takes a hundred times as long


def _random_numbers() -> tuple[bytes, bytes]:
    """Return the states of Python's and NumPy's generators: the settings, and the words."""
    version, words, gauss = random.getstate()
    settings: list[Any] = [version, gauss]
    packed = _WORDS.pack(*words)
    if (numpy := sys.modules.get("numpy")) is not None:
        state = numpy.random.get_state(legacy=False)
        if state["bit_generator"] == _TWISTER:
            packed += state["state"].pop("key").tobytes()
        settings.append(state)
    return _SETTINGS.encode(settings).encode(), packed


def _restore_random_numbers(settings: list[Any], packed: bytes) -> None:
    version, gauss, *of_numpy = settings
    random.setstate((version, _WORDS.unpack(packed[: _WORDS.size]), gauss))
    if of_numpy and (numpy := sys.modules.get("numpy")) is not None:
        [state] = of_numpy
        if state["bit_generator"] == _TWISTER:
            state["state"]["key"] = numpy.frombuffer(packed[_WORDS.size :], numpy.uint32)
        numpy.random.set_state(state)


def _encode(states: dict[str, Any]) -> bytes:
    """Return the states as JSON where that gives the same back, else as torch saves them."""
    try:
        text = json.dumps(states)
        if json.loads(text) == states and not _has_tuple(states):
            return b"j" + text.encode()
    except (TypeError, ValueError):
        pass
    file = io.BytesIO()
    torch.save(states, file)
    return b"t" + file.getvalue()


def _has_tuple(states: Any) -> bool:
    if isinstance(states, dict):
        return any(map(_has_tuple, states.values()))
    return isinstance(states, tuple) or (isinstance(states, list) and any(map(_has_tuple, states)))


def _decode(text: bytes) -> dict[str, Any]:
    states: dict[str, Any] = (
        json.loads(text[1:]) if text[:1] == b"j" else torch.load(io.BytesIO(text[1:]), weights_only=False)
    )
    return states
