"""Reads logs of any size for a verdict: in one pass, in bounded memory; of a cycle that has just ended, their ends.

Most lines of a log are alike but for their digits. Each such pattern is looked at once; the first and the last part of
a file, and what surrounds a line that says something, are looked at line by line.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from nvrx_core.attribution.cascade import decide
from nvrx_core.attribution.classification import Classifier
from nvrx_core.attribution.origin import Origin, of_file, parse
from nvrx_core.attribution.verdict import Verdict

__all__ = ["last_lines", "log_files", "open_faults", "verdict_of_files"]

CHUNK: Final = 1 << 20
EDGE: Final = 1 << 16
"""Bytes at the beginning and at the end of a file that are looked at line by line."""
MAX_LINE: Final = 1 << 16
"""Bytes of a line that are looked at."""
MAX_PATTERNS: Final = 1 << 16
MAX_PATTERN: Final = 1_024
MAX_FILES: Final = 100_000
MAX_EVENTS: Final = 1 << 18
"""Bytes at the end of an event file in which faults are looked for."""
_DIGITS: Final = b"0123456789"
_NOT_LOGS: Final = frozenset(
    {".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".pkl", ".so", ".py", ".zip", ".tar", ".png", ".distcp"}
)


def verdict_of_files(files: Iterable[Path], *, skip: int = 0) -> Verdict:
    """Return the verdict of the logs of one job.

    Args:
        files: the logs.
        skip: bytes at the beginning of each that are left out; their lines are counted.

    Raises:
        OSError: when a file cannot be read; what is no log, or broken as a gzip file, is read as far as it goes.
    """
    classifier, boring = Classifier(), set[bytes]()
    for file in files:
        _read(file, classifier, boring, skip)
    return decide(classifier.findings(), classifier.seen)


def log_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files that are named, and all regular files in folders that are, except for those that are no logs.

    Raises:
        OSError: when a path does not exist, or there are more files than `MAX_FILES`.
    """
    found = list[Path]()
    for path in paths:
        if not path.is_dir():
            path.stat()
            found.append(path)
            continue
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                file = Path(folder, name)
                if file.suffix.lower() not in _NOT_LOGS and file.is_file() and not file.is_symlink():
                    found.append(file)
                if len(found) > MAX_FILES:
                    raise OSError(f"more than {MAX_FILES} files in {path}")
    return found


def last_lines(data: bytes, size: int) -> tuple[str, ...]:
    """Return the lines in the last `size` bytes of a worker's output, without one that may be cut."""
    lines = data[-size:].decode(errors="replace").splitlines()
    return tuple(lines[len(data) >= size and len(lines) > 1 :])


def open_faults(file: Path, since: float) -> tuple[str, ...]:
    """Return the lines of the faults, in the event file of a rank, that no restart in process has followed.

    Args:
        file: the event file; one that cannot be read has none.
        since: the earliest time of a fault that counts, wall seconds of this host.
    """
    found = list[str]()
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - MAX_EVENTS))
            data = stream.read(MAX_EVENTS)
    except OSError:
        return ()
    for line in last_lines(data, MAX_EVENTS):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(event, dict) or not isinstance(wall := event.get("wall"), int | float) or wall < since:
            continue
        if event.get("event") == "fault":
            found.append(line)
        elif event.get("event") == "restart":
            found.clear()
    return tuple(found)


def _read(file: Path, classifier: Classifier, boring: set[bytes], skip: int) -> None:
    origin, name = of_file(str(file)), str(file)
    number, until = _lines_before(file, skip), 0
    for lines, is_edge in _chunks(file, skip):
        if is_edge:
            patterns = [each.translate(None, _DIGITS) for each in lines]
        else:
            patterns = b"\n".join(lines).translate(None, _DIGITS).split(b"\n")
        for index, pattern in enumerate(patterns):
            if pattern in boring and not is_edge and number + index > until:
                continue
            if after := _feed(classifier, (name, number + index + 1), lines[index], origin):
                until = number + index + after
            elif len(pattern) <= MAX_PATTERN:
                if len(boring) >= MAX_PATTERNS:
                    boring.clear()
                boring.add(pattern)
        number += len(lines)


def _feed(classifier: Classifier, line: tuple[str, int], raw: bytes, origin: Origin) -> int:
    after = 0
    for part in raw[-MAX_LINE:].split(b"\r") if b"\r" in raw else (raw[:MAX_LINE],):  # of a progress bar all states
        for parsed in parse(*line, part.decode(errors="replace"), origin):
            after = max(after, classifier.feed(parsed))
    return after


def _lines_before(file: Path, end: int) -> int:
    """Return how many lines end before a position."""
    found = 0
    if end:
        with file.open("rb") as stream:
            while (left := end - stream.tell()) > 0 and (data := stream.read(min(left, CHUNK))):
                found += data.count(b"\n")
    return found


def _chunks(file: Path, skip: int) -> Iterator[tuple[list[bytes], bool]]:
    """Yield the lines of a file in chunks, and whether they are of its beginning or its end."""
    with file.open("rb") as raw:
        is_zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if is_zipped else raw
        if not is_zipped:
            raw.seek(skip)
        rest, chunk, is_first = b"", _some(stream, EDGE), True
        while chunk:
            following = _some(stream, CHUNK)
            data = rest + chunk
            if not following:
                body, edge = data[: -EDGE or None], data[-EDGE:] if len(data) > EDGE else b""
                if edge:
                    cut = body.rfind(b"\n") + 1
                    yield from _lines(body[:cut], is_edge=is_first)
                    yield from _lines(body[cut:] + edge, is_edge=True)
                else:
                    yield from _lines(data, is_edge=True)
                return
            cut = data.rfind(b"\n") + 1
            yield from _lines(data[:cut], is_edge=is_first)
            rest, chunk, is_first = data[cut:], following, False
            if len(rest) > MAX_LINE:  # a line without an end: its beginning and its end are enough
                rest = rest[: MAX_LINE // 2] + rest[-MAX_LINE // 2 :]


def _lines(data: bytes, *, is_edge: bool) -> Iterator[tuple[list[bytes], bool]]:
    if data:
        yield data.removesuffix(b"\n").split(b"\n"), is_edge


def _some(stream: io.BufferedIOBase | io.BufferedReader, size: int) -> bytes:
    try:
        return stream.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return b""
