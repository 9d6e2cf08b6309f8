"""Caches of what a Megatron-LM script computes at each start with the same result.

Megatron-LM reads the help texts of its flags from the sources of its configuration classes, which takes nearly all the
time of parsing its arguments; and rank 0 runs `make` for a library that exists since the first iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvrx_megatron import internals
from nvrx_megatron.installed import replace_once

__all__ = ["compute_once"]


def compute_once() -> None:
    """Install the caches in Megatron-LM; a second call does nothing."""
    replace_once(*internals.flag_texts(), _texts_once)
    replace_once(*internals.build_of_helpers(), _built_once)


def _texts_once(read: Callable[[Any, type], dict[str, str]]) -> Callable[[Any, type], dict[str, str]]:
    """Read the texts of each class once; a caller may change its copy."""
    known: dict[type, dict[str, str]] = {}

    def texts(factory: Any, kind: type) -> dict[str, str]:
        if kind not in known:
            known[kind] = read(factory, kind)
        return dict(known[kind])

    return texts


def _built_once(build: Callable[[], None]) -> Callable[[], None]:
    """Build until a build has succeeded; a build that fails exits."""
    built: list[bool] = []

    def build_once() -> None:
        if not built:
            build()
            built.append(True)

    return build_once
