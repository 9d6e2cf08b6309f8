"""The log files of a cycle's workers, in torchrun's layout.

    <log_dir>/<run id>_<random>/attempt_<cycle>/<local rank>/stdout.log, stderr.log, error.json
    <log_dir>/<run id>_<random>/attempt_<cycle>/filtered_stdout.log, filtered_stderr.log

An entry point of the group `torchrun.logs_specs` may define another layout (`logs_specs.py`).
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nvrx_launcher.options import LaunchOptions

__all__ = ["CycleFiles", "LogFiles", "Stream", "TorchrunFiles", "WorkerFiles"]

log = logging.getLogger("nvrx_launcher")
NAME_BYTES: Final = 200
"""Bytes of a job's name in the name of a folder."""


@dataclass(frozen=True)
class Stream:
    """The destination of one stream of a worker.

    Attributes:
        file: its file, "" for none.
        is_shown: whether it is shown on the console.
    """

    file: str = ""
    is_shown: bool = True


@dataclass(frozen=True)
class WorkerFiles:
    """The destinations of a worker's streams, and its error file, "" for none."""

    stdout: Stream
    stderr: Stream
    error: str


@dataclass(frozen=True)
class CycleFiles:
    """The files of a cycle.

    Attributes:
        workers: by local rank.
        filtered_stdout, filtered_stderr: for lines that contain one of the filter texts.
    """

    workers: Mapping[int, WorkerFiles]
    filtered_stdout: str
    filtered_stderr: str


class LogFiles(Protocol):
    """Creates the log files of each cycle."""

    def begin(self, cycle: int, environments: Mapping[int, dict[str, str]]) -> CycleFiles:
        """Make the folders of a cycle.

        Args:
            cycle: its number.
            environments: the environments of the workers, by local rank.
        """


class TorchrunFiles:
    """Log files in torchrun's layout.

    Args:
        options: selects the streams that are written to files.
        folder: for error files, if no log files are requested.
    """

    def __init__(self, options: LaunchOptions, folder: Path) -> None:
        self._options = options
        if options.log_dir is not None or options.redirects.is_any or options.tee.is_any:
            parent = Path(options.log_dir or tempfile.mkdtemp(prefix="ft_launcher_"))
            parent.mkdir(parents=True, exist_ok=True)
            name = options.run_id.replace("/", "_").encode()[:NAME_BYTES].decode(errors="ignore")
            folder = Path(tempfile.mkdtemp(prefix=f"{name}_", dir=parent))
            log.info("log files are in %s", folder)
        self._folder = folder

    def begin(self, cycle: int, environments: Mapping[int, dict[str, str]]) -> CycleFiles:
        """Make the folders of a cycle."""
        folder = self._folder / f"attempt_{cycle}"
        for local_rank in environments:
            (folder / str(local_rank)).mkdir(parents=True)
        workers = {local_rank: self._of(folder / str(local_rank), local_rank) for local_rank in environments}
        return CycleFiles(workers, str(folder / "filtered_stdout.log"), str(folder / "filtered_stderr.log"))

    def _of(self, folder: Path, local_rank: int) -> WorkerFiles:
        options = self._options
        to_file, tee = options.redirects[local_rank], options.tee[local_rank]
        shown = not options.local_ranks_filter or local_rank in options.local_ranks_filter

        def stream(name: str, redirected: bool, teed: bool) -> Stream:
            file = os.fspath(folder / f"{name}.log") if redirected or teed else ""
            return Stream(file, is_shown=shown and (teed or not redirected))

        return WorkerFiles(
            stream("stdout", to_file.stdout, tee.stdout), stream("stderr", to_file.stderr, tee.stderr),
            os.fspath(folder / "error.json"),
        )  # fmt: skip
