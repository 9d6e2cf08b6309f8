"""Log files placed by a plug-in: an entry point of the group `torchrun.logs_specs`, as in torchrun.

The only module of the workers' package that imports torch, and only if such a plug-in is requested.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import ConfigurationError
from nvrx_launcher.options import LaunchOptions, Streams
from nvrx_launcher.workers.log_files import CycleFiles, Stream, WorkerFiles

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs, Std

__all__ = ["PlugInFiles", "load_logs_specs"]

GROUP: Final = "torchrun.logs_specs"


def load_logs_specs(options: LaunchOptions) -> LogsSpecs:
    """Return the plug-in that `--logs-specs` names, constructed as torchrun does.

    Raises:
        ConfigurationError: when there is no such entry point.
    """
    name, found = options.logs_specs, metadata.entry_points(group=GROUP)
    chosen = next((entry for entry in found if entry.name == name), None)
    if chosen is None:
        problem = f"there is no entry point {name!r} in the group {GROUP}"
        advice = f"write one of: {', '.join(found.names)}" if found else "install the package that has it"
        raise ConfigurationError("command line", "--logs-specs", problem, advice)
    made: LogsSpecs = chosen.load()(
        log_dir=options.log_dir, redirects=_std(options.redirects.of_workers(options.workers)),
        tee=_std(options.tee.of_workers(options.workers)),
        local_ranks_filter=set(options.local_ranks_filter) or None,
    )  # fmt: skip
    return made


class PlugInFiles:
    """Log files placed by a plug-in.

    Args:
        specs: the plug-in.
    """

    def __init__(self, specs: LogsSpecs) -> None:
        self._specs = specs

    def begin(self, cycle: int, environments: Mapping[int, dict[str, str]]) -> CycleFiles:
        """Let the plug-in create the files of a cycle; it may change the environments of workers."""
        found: Any = self._specs.reify(dict(environments))
        workers = {
            local_rank: WorkerFiles(
                _stream(found.stdouts[local_rank], found.tee_stdouts, local_rank),
                _stream(found.stderrs[local_rank], found.tee_stderrs, local_rank),
                _file(found.error_files.get(local_rank, "")),
            )
            for local_rank in environments
        }
        filtered = [getattr(found, name, "") or os.devnull for name in ("filtered_stdout", "filtered_stderr")]
        return CycleFiles(workers, *filtered)


def _stream(file: str, teed: Mapping[int, str], local_rank: int) -> Stream:
    return Stream(_file(file), is_shown=not file or bool(_file(teed.get(local_rank, ""))))


def _file(name: str) -> str:
    return "" if name == os.devnull else name


def _std(streams: Mapping[int, Streams]) -> dict[int, Std]:
    from torch.distributed.elastic.multiprocessing import Std

    return {rank: Std(each.stdout + 2 * each.stderr) for rank, each in streams.items()}
