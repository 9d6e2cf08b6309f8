"""A fault: what struck which rank, when and where; the one record that travels through the store.

Pure. On the wire it is one JSON object of at most `MAX_BYTES`; unknown fields are ignored, missing ones are an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from nvrx_core.fault.attribution import Interruption, InterruptionRecord
from nvrx_core.parsing import integer, number, string

__all__ = ["LATE_COMPLETION", "OUT_OF_MEMORY", "FaultRecord"]

MAX_BYTES: Final = 16_384
MAX_TEXT: Final = 2_000
LATE_COMPLETION: Final = "late completion"
"""The error type of a fault that tells of other ranks: they did not complete in time. No exception has this name."""
OUT_OF_MEMORY: Final = "out of memory"
"""A fault's category."""
KERNEL_KILLED: Final = "and the kernel has killed for want of memory in its cgroup"


_READ: Final[Mapping[str, Callable[[object], Any]]] = {"int": integer, "str": string, "float": number}


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """One fault of one rank.

    Attributes:
        initial_rank: the rank's name in the job, never reused.
        rank: its wrapper rank in the iteration that ended; -1 when it was lost before it had one.
        interruption: the kind, a name of `Interruption`.
        message: what happened, for people.
        error_type: the exception's qualified type name, or "".
        origin: file and line where it was raised, or "".
        category: "out of memory" where that is known to be the reason, or "".
        struck: when it happened, monotonic seconds of its host.
        announced: when it was told to the others, monotonic seconds of its host.
        wall: the wall clock at `announced`, for hosts that do not share a monotonic clock.
        boot_id: names the monotonic clock: equal on processes that share it.
        host: the host's name.
        pid: the rank's process.
    """

    initial_rank: int
    rank: int
    interruption: str
    message: str = ""
    error_type: str = ""
    origin: str = ""
    category: str = ""
    struck: float = 0.0
    announced: float = 0.0
    wall: float = 0.0
    boot_id: str = ""
    host: str = ""
    pid: int = 0

    def encode(self) -> str:
        """The fault as JSON, its text cut to a bound."""
        return json.dumps(self.to_data())

    def to_data(self) -> dict[str, Any]:
        """What `from_data` reads."""
        return {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in vars(self).items()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The fault that `encode` wrote, from its parsed JSON.

        Raises:
            ValueError: when a field is missing or has the wrong type, or the kind is unknown.
        """
        if not isinstance(data, Mapping) or not {"initial_rank", "rank", "interruption"} <= data.keys():
            raise ValueError(f"not a fault record: {data!r:.200}")
        fields = cls.__dataclass_fields__
        known = {name: _READ[str(fields[name].type)](value) for name, value in data.items() if name in fields}
        if known["interruption"] not in Interruption.__members__:
            raise ValueError(f"not a fault record: {data!r:.200}")
        return cls(**known)

    def of_memory(self) -> Self:
        """The fault of a process that the kernel has killed for want of memory."""
        return replace(self, category=OUT_OF_MEMORY, message=f"{self.message}, {KERNEL_KILLED}")

    def event_fields(self) -> dict[str, object]:
        """The fields of the `fault` event that tells of it."""
        names = ("rank", "interruption", "message", "origin", "category", "struck", "announced")
        return {**{name: getattr(self, name) for name in names}, "victim": self.initial_rank}

    @property
    def record(self) -> InterruptionRecord:
        """The fault as the record that the wrapper's messages show."""
        return InterruptionRecord(self.rank, Interruption[self.interruption])

    def __str__(self) -> str:
        where = f" at {self.origin}" if self.origin else ""
        who = f"rank {self.rank} (initial rank {self.initial_rank}, {self.host} pid {self.pid})"
        category = f" ({self.category})" if self.category else ""
        return f"{self.interruption}{category} on {who}: {self.message}{where}"
