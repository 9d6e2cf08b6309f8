"""Containers of a user's module and callbacks that steps fill, such as `self.outputs.append(loss)`.

A restart takes steps back, and what they have appended stays: nobody knows what of it belongs to the checkpoint. Their
lengths tell that something has stayed, and its name.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

__all__ = ["Containers"]

KEPT: Final = 16
"""Number of checkpoints whose lengths are kept."""
_KINDS: Final = (list, dict, set, deque)
_NESTED: Final = 1024
"""Of a container with more items, such as a replay buffer, those are not looked at."""
_LIGHTNING: Final = ("lightning.", "pytorch_lightning.", "nvrx_lightning.")


class Containers:
    """The containers of a module, of the modules in it, and of callbacks that are not Lightning's.

    Args:
        trainer: has the callbacks.
        module: the module.
        own: the names of the attributes that each LightningModule has.
    """

    def __init__(self, trainer: Any, module: torch.nn.Module, own: frozenset[str]) -> None:
        self._trainer, self._module, self._own = trainer, module, own
        self._begun: dict[str, int] | None = None
        self._known: list[tuple[str, dict[str, Any], str]] = []
        self._saved: OrderedDict[str, dict[str, int]] = OrderedDict()
        self._named = set[str]()

    def begin(self) -> None:
        """Keep the lengths for a restart without a checkpoint, once: hooks have made the containers until then."""
        if self._begun is None:
            self._begun = self._lengths()
        self._known = [(name, attributes, key) for name, attributes, key in self._places()]

    def keep(self, token: str) -> None:
        """Keep the lengths for a checkpoint, by its token."""
        self._saved[token] = self._lengths()
        while len(self._saved) > KEPT:
            self._saved.popitem(last=False)

    def compare(self, token: str | None) -> dict[str, str]:
        """Return the containers that differ from the checkpoint, each once, by name, and how.

        Args:
            token: of the checkpoint; None without one, for the begin of the fit.
        """
        return self.differing(self._begun if token is None else self._saved.get(token))

    def differing(self, before: Mapping[str, int] | None) -> dict[str, str]:
        """Return the containers that differ from these lengths, each once, by name, and how."""
        if before is None:
            return {}
        now = self._lengths()
        found = [name for name in now if now[name] != before.get(name, 0) and name not in self._named]
        self._named.update(found)
        return {name: f"{name} has {now[name]} items and had {before.get(name, 0)}" for name in found}

    def lengths(self) -> dict[str, int]:
        """Return the lengths of the containers that were there when the attempt began to train, at little cost."""
        present = ((name, attributes.get(key)) for name, attributes, key in self._known)
        return {name: _length(each) for name, each in present if isinstance(each, _KINDS)}

    def _lengths(self) -> dict[str, int]:
        return {name: _length(attributes[key]) for name, attributes, key in self._places()}

    def _places(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        for name, part in self._module.named_modules(prefix="module"):
            if part is self._module or not type(part).__module__.startswith(("torch.", "torchmetrics.")):
                yield from _attributes(name, part, self._own)
        for callback in self._trainer.callbacks:
            if not type(callback).__module__.startswith(_LIGHTNING):
                yield from _attributes(type(callback).__qualname__, callback, frozenset())


def _length(container: Any) -> int:
    """Return the number of items, with those of the containers in it: `defaultdict(list)`, `[[], []]`."""
    if len(container) > _NESTED:
        return len(container)
    parts = tuple(container.values() if isinstance(container, dict) else container)
    inner = [len(each) for each in parts if isinstance(each, _KINDS)]
    return len(container) - len(inner) + sum(inner)


def _attributes(owner: str, each: object, own: frozenset[str]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the name of each container of an object, the object's attributes, and the name there."""
    for name, value in vars(each).items():
        if isinstance(value, _KINDS) and name not in own:
            yield f"{owner}.{name}", vars(each), name
