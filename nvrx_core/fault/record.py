"""The record of a fault: what happened to which rank, when and where, as sent through the store. Pure.

On the wire it is one JSON object of at most `MAX_BYTES`. Unknown fields are ignored; a missing field is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from nvrx_core.fault.interruption import Interruption, InterruptionRecord
from nvrx_core.parsing import integer, number, string
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["JOB_MISMATCH", "LATE_COMPLETION", "OUT_OF_MEMORY", "FaultRecord"]

MAX_BYTES: Final = 16_384
MAX_TEXT: Final = 2_000
LATE_COMPLETION: Final = "late completion"
"""The error type of a fault that reports other ranks: they did not complete in time. No exception has this name."""
JOB_MISMATCH: Final = "job mismatch"
"""The error type of a fault that ends the job: its ranks contradict each other."""
OUT_OF_MEMORY: Final = "out of memory"
"""The category of a fault for which memory ran out."""
LARGEST_CODE: Final = 255
KERNEL_KILLED: Final = "and the kernel's OOM killer was active in its cgroup"


_READ: Final[Mapping[str, Callable[[object], Any]]] = {
    "int": integer,
    "InitialRank": integer,
    "str": string,
    "float": number,
    "bool": bool,
}


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """One fault of one rank.

    Attributes:
        initial_rank: the rank's identity in the job, never reused.
        rank: its wrapper rank in the iteration that ended; -1 when it was lost before it had one.
        interruption: the kind of interruption, a member name of `Interruption`.
        message: the description for people.
        error_type: the exception's qualified type name, or "".
        origin: the user's file and line that led to the exception, or "".
        raised_at: the file and line that raised it, or "": below one line of the user's, a library fails in many ways.
        category: "out of memory" where that is known to be the reason, or "".
        occurred: the time at which the fault happened, monotonic seconds of its host.
        announced: the time at which the fault was announced to the other ranks, monotonic seconds of its host.
        wall: the wall clock at `announced`, for hosts that do not share a monotonic clock.
        boot_id: the identifier of the monotonic clock: equal in processes that share it.
        host: the host name.
        pid: the process id of the rank.
        exit_code: the exit code of a rank that has left by `sys.exit(n)`, Ctrl-C or a signal: n, or 128 + the number of
            the signal; 0 if it is not known, or the rank has failed otherwise.
        behind_step: what has failed follows a step that a restart does not do again, in the code that has committed it.
    """

    initial_rank: InitialRank
    rank: int
    interruption: str
    message: str = ""
    error_type: str = ""
    origin: str = ""
    raised_at: str = ""
    category: str = ""
    occurred: float = 0.0
    announced: float = 0.0
    wall: float = 0.0
    boot_id: str = ""
    host: str = ""
    pid: int = 0
    exit_code: int = 0
    behind_step: bool = False

    def encode(self) -> str:
        """Return the record as JSON, each text cut to `MAX_TEXT` characters."""
        return json.dumps(self.to_data())

    def to_data(self) -> dict[str, Any]:
        """Return the fields as `from_data` reads them."""
        return {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in vars(self).items()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the record from the parsed JSON of `encode`.

        Raises:
            ValueError: when a field is missing or has the wrong type, the interruption is unknown, or the exit code is
                none of a process.
        """
        if not isinstance(data, Mapping) or not {"initial_rank", "rank", "interruption"} <= data.keys():
            raise ValueError(f"not a fault record: {data!r:.200}")
        fields = cls.__dataclass_fields__
        known = {name: _READ[str(fields[name].type)](value) for name, value in data.items() if name in fields}
        if known["interruption"] not in Interruption.__members__ or not 0 <= known.get("exit_code", 0) <= LARGEST_CODE:
            raise ValueError(f"not a fault record: {data!r:.200}")
        return cls(**known)

    def of_memory(self) -> Self:
        """Return the record of a process that the kernel's OOM killer has killed."""
        return replace(self, category=OUT_OF_MEMORY, message=f"{self.message}, {KERNEL_KILLED}")

    def event_fields(self) -> dict[str, object]:
        """Return the fields of the `fault` event for this record."""
        names = ("rank", "interruption", "message", "origin", "category", "occurred", "announced")
        return {**{name: getattr(self, name) for name in names}, "faulty_initial_rank": self.initial_rank}

    @property
    def record(self) -> InterruptionRecord:
        """The interruption record that the wrapper's messages show."""
        return InterruptionRecord(self.rank, Interruption[self.interruption])

    def __str__(self) -> str:
        where = f" at {self.origin}" if self.origin else ""
        process = f"rank {self.rank} (initial rank {self.initial_rank}, {self.host} pid {self.pid})"
        category = f" ({self.category})" if self.category else ""
        return f"{self.interruption}{category} on {process}: {self.message}{where}"
