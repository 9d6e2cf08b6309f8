"""One section of a YAML file: its values, with the line of each.

The file may hold anything else beside the section; tags there are not evaluated. A key that is written twice is
refused, and so is a number that YAML 1.1 reads otherwise than a person does: 1:30 is 90, 010 is 8.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.scanner import ScannerError

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.forms import brief

__all__ = ["YamlSection", "load", "save"]

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 100
_NULL: Final = "tag:yaml.org,2002:null"
_SEXAGESIMAL: Final = re.compile(r"[+-]?[\d_]+(:[\d_.]+)+")
_NOT_DECIMAL: Final = re.compile(r"[+-]?0[\dxb_]+[\da-f_]*", re.IGNORECASE)


@dataclass(frozen=True)
class YamlSection:
    """The section of a file.

    Attributes:
        path: the file.
        values: the value of each key.
        lines: the line of each key, and as `key.entry` of each entry of a mapping.
    """

    path: str
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Return the file and line of a key."""
        return f"{self.path}:{self.lines[key]}"

    def parts(self, key: str) -> dict[str, str]:
        """Return the file and line of each entry of a mapping."""
        prefix = f"{key}."
        return {name.removeprefix(prefix): self.place(name) for name in self.lines if name.startswith(prefix)}


def load(path: str | os.PathLike[str], section: str, *, ignore_missing: bool = False) -> YamlSection:
    """Return the first mapping named `section`, at any depth of a file; the section itself may be empty.

    Args:
        path: the file.
        section: the key of the mapping.
        ignore_missing: return an empty section where the file, or the section in it, does not exist.

    Raises:
        ConfigurationError: when the file cannot be read, is not YAML, or has no such section.
    """
    name = os.fspath(path)
    if ignore_missing and not os.path.exists(name):
        return YamlSection(name)
    data = _content(name)
    try:
        return _Reader(name, data).section(section, ignore_missing=ignore_missing)
    except yaml.reader.ReaderError as error:
        line = data[: error.position].count(b"\n") + 1
        raise ConfigurationError(f"{name}:{line}", "", f"not text, {error.reason}", "save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = " ".join(f"cannot be read as YAML, {error.context or ''} {error.problem}".split())
        raise ConfigurationError(f"{name}:{line}", "", problem, "correct this line or the one before it") from None
    except RecursionError:
        raise ConfigurationError(name, "", "nested too deeply, or in itself", "write it with fewer levels") from None


def save(path: str | os.PathLike[str], section: str, values: Mapping[str, Any]) -> None:
    """Write a file that holds the section alone; a reader sees the old file or the whole new one.

    Raises:
        OSError: when the file cannot be written.
    """
    temporary = f"{os.fspath(path)}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            yaml.safe_dump({section: dict(values)}, file, sort_keys=False, allow_unicode=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


class _Loader(yaml.SafeLoader):
    """Refuses deep nesting, which costs the scanner time that grows with the square of the depth."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= MAX_DEPTH:
            raise ScannerError(problem=f"more than {MAX_DEPTH} brackets are open", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(token)


class _Reader:
    """Reads one section from the node graph of a file, which has the line of each node."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path, self._loader = path, _Loader(data)
        self._lines: dict[str, int] = {}

    def section(self, name: str, *, ignore_missing: bool) -> YamlSection:
        found = [value for key, value in _pairs(self._loader.get_single_node()) if key.value == name]
        section = next((node for node in found if isinstance(node, MappingNode) or node.tag == _NULL), None)
        if section is not None:
            return YamlSection(self._path, self._values(section), self._lines)
        if found:
            self._refuse(found[0], name, f"{_shown(found[0])}, not a mapping", "write the settings below it, indented")
        if not ignore_missing:
            problem = f"no {name} section, so no setting would apply"
            raise ConfigurationError(self._path, "", problem, f"write {name}: above the settings and indent them")
        return YamlSection(self._path)

    def _values(self, node: Node, prefix: str = "") -> dict[Any, Any]:
        """Return the values of a mapping, and note the lines of its keys; a null has none."""
        if not isinstance(node, MappingNode):
            return {}
        self._refuse_duplicates(node, prefix)
        self._loader.flatten_mapping(node)
        return {self._key(key, prefix): self._value(value, f"{prefix}{key.value}") for key, value in node.value}

    def _key(self, node: Node, prefix: str) -> Any:
        if not isinstance(node, ScalarNode):
            self._refuse(node, "", f"{_shown(node)} as a key, a key is a name", "write a name before the colon")
        self._lines[f"{prefix}{node.value}"] = node.start_mark.line + 1
        return self._loader.construct_object(node) if prefix else node.value

    def _value(self, node: Node, key: str) -> Any:
        if isinstance(node, MappingNode):
            return self._values(node, f"{key}.")
        try:
            value = self._loader.construct_object(node, deep=True)
        except ValueError as error:
            self._refuse(node, key, f"{_shown(node)} cannot be read, {error}", "write another value, or quote it")
        if isinstance(value, int | float) and _is_ambiguous(node.value):
            problem = f"{node.value} is ambiguous, YAML reads it as {value}"
            self._refuse(node, key, problem, "write a decimal number, or text in quotes")
        return value

    def _refuse_duplicates(self, node: MappingNode, prefix: str) -> None:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = key.value if isinstance(key, ScalarNode) else ""
            if name in lines:
                problem = f"written twice, also on line {lines[name]}"
                self._refuse(key, f"{prefix}{name}", problem, "remove one of the two")
            if name:
                lines[name] = key.start_mark.line + 1

    def _refuse(self, node: Node, key: str, problem: str, advice: str) -> NoReturn:
        raise ConfigurationError(f"{self._path}:{node.start_mark.line + 1}", key, problem, advice)


def _pairs(root: Node | None) -> Iterator[tuple[ScalarNode, Node]]:
    """Yield each named value of a file: those of a mapping first, then, in order, those inside them."""
    pending, seen = [root], set()
    while pending:
        node = pending.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            yield from ((key, value) for key, value in node.value if isinstance(key, ScalarNode))
            pending.extend(value for _, value in reversed(node.value))
        elif isinstance(node, SequenceNode):
            pending.extend(reversed(node.value))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(path, "", f"cannot be read, {reason}", "name a YAML file that exists") from None
    if len(data) > MAX_BYTES:
        raise ConfigurationError(path, "", f"too large, the limit is {MAX_BYTES} bytes", "name a YAML file")
    return data


def _is_ambiguous(text: str) -> bool:
    return bool(_SEXAGESIMAL.fullmatch(text) or _NOT_DECIMAL.fullmatch(text))


def _shown(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return brief(node.value)
    return "a list" if isinstance(node, SequenceNode) else "a mapping"
