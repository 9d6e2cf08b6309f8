"""The source of the product as syntax trees, parsed and searched once for all tests that look at it."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator
from typing import TypeVar

__all__ = ["ROOT", "name_of_call", "nodes", "sources", "text"]

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("nvrx_core", "integrations", "launcher")
Node = TypeVar("Node", bound=ast.AST)


@functools.cache
def text(path: str) -> str:
    return (ROOT / path).read_text()


@functools.cache
def sources() -> dict[str, ast.Module]:
    """The modules by their paths below the root."""
    files = [path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path): ast.parse(text(str(path))) for path in files}


@functools.cache
def _by_kind() -> dict[type, list[tuple[str, ast.AST]]]:
    found: dict[type, list[tuple[str, ast.AST]]] = {}
    for path, tree in sources().items():
        for node in ast.walk(tree):
            found.setdefault(type(node), []).append((path, node))
    return found


def nodes(kind: type[Node]) -> Iterator[tuple[str, Node]]:
    """Each node of a kind, with the path of its module."""
    yield from _by_kind().get(kind, [])  # type: ignore[misc]


def name_of_call(call: ast.Call) -> str:
    """The last part of what is called: `start` for `self.thread.start()`."""
    called = call.func
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
