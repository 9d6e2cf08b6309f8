"""The error tree. Every error carries its facts as fields, and its text ends with what to do next.

```text
BaseException
├── RestartAbort                    no further restart: every rank leaves
├── SystemExit ─ StoreLost          the control store is gone: the process leaves with code 75
└── Exception
    ├── RestartError                base of what a restart may raise
    │   ├── BarrierError            ─ BarrierTimeout, BarrierOverflow
    │   ├── RankDiscarded           this rank has no place in the next iteration
    │   ├── RankAssignmentError     rank_assignment gave no valid answer
    │   ├── HealthCheckError, FaultCounterExceeded, TimeoutError
    │   └── InternalError           an invariant of nvrx is broken
    └── ParameterError, a ValueError; ParameterTypeError, a TypeError
```
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import ClassVar, Final

__all__ = [
    "BarrierError", "BarrierOverflow", "BarrierTimeout", "FaultCounterExceeded", "HealthCheckError", "InternalError",
    "ParameterError", "ParameterTypeError", "RankAssignmentError", "RankDiscarded", "RestartAbort", "RestartError",
    "StoreLost", "TimeoutError", "require", "require_type", "shown",
]  # fmt: skip

STORE_LOST: Final = 75


class _Explained(BaseException):
    """A message, the fields of a subclass, and `advice`: what to do next, by default that of the class."""

    advice: str = ""

    def __init__(self, *args: object, advice: str | None = None) -> None:
        super().__init__(*args)
        if advice is not None:
            self.advice = advice

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}. Next: {self.advice}" if text and self.advice else text or self.advice


class RestartAbort(_Explained):
    """Leave for good: the rank that raises it does not restart. Raised on all ranks alike, it ends the job.

    Attributes:
        culprit: the initial rank that the reason is about, None when it is about all of them.
    """

    advice = "mend the cause and start the job again; this rank will not restart by itself"

    def __init__(self, *args: object, culprit: int | None = None, advice: str | None = None) -> None:
        super().__init__(*args, advice=advice)
        self.culprit = culprit


class StoreLost(_Explained, SystemExit):
    """The control store's host is gone; a `SystemExit` with code 75.

    Attributes:
        host: where the store was.
        port: on which port.
    """

    advice = "find out why its process ended; a store outside the ranks (python -m nvrx_core.store) outlives them"

    def __init__(self, host: str = "", port: int = 0, *, advice: str | None = None) -> None:
        super().__init__(f"the control store at {host}:{port} is lost", advice=advice)
        self.code = STORE_LOST
        self.host, self.port = host, port

    def __reduce__(self) -> tuple[type[StoreLost], tuple[str, int]]:
        return type(self), (self.host, self.port)


class RestartError(_Explained, Exception):
    """Base of the errors that a restart may raise."""


class HealthCheckError(RestartError):
    """A health check found this rank unfit.

    Attributes:
        initial_rank: the rank, None when it is not known.
    """

    advice = "check this rank's device and host before it takes part again; the other ranks go on without it"

    def __init__(self, *args: object, initial_rank: int | None = None, advice: str | None = None) -> None:
        super().__init__(*args, advice=advice)
        self.initial_rank = initial_rank


class InternalError(RestartError):
    """An invariant of nvrx is broken."""

    advice = "this is a fault of nvrx: report it with the log and the event files of all ranks"


class TimeoutError(RestartError):
    """A bounded call did not end in time.

    Attributes:
        what: what was called.
        seconds: its bound.
    """

    advice = "find what blocks the call, or allow it more time"

    def __init__(self, *args: object, what: str = "", seconds: float | None = None, advice: str | None = None) -> None:
        super().__init__(*args, advice=advice)
        self.what, self.seconds = what, seconds


class BarrierError(RestartError):
    """A barrier between the ranks failed.

    Attributes:
        barrier: its name.
        arrived: how many ranks were there.
        expected: how many ranks it was for.
    """

    def __init__(
        self, *args: object, barrier: str = "", arrived: int = 0, expected: int = 0, advice: str | None = None
    ) -> None:
        super().__init__(*args, advice=advice)
        self.barrier, self.arrived, self.expected = barrier, arrived, expected


class BarrierTimeout(BarrierError):
    """Not all ranks reached a barrier in time.

    Attributes:
        missing: the initial ranks that did not, as far as they are known.
        seconds: how long the others waited.
    """

    advice = "look at the log of the ranks that are missing, or raise the barrier's timeout"

    def __init__(
        self, *args: object, barrier: str = "", arrived: int = 0, expected: int = 0, missing: Iterable[int] = (),
        seconds: float | None = None, advice: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(*args, barrier=barrier, arrived=arrived, expected=expected, advice=advice)
        self.missing, self.seconds = tuple(missing), seconds


class BarrierOverflow(BarrierError):
    """More ranks reached a barrier than it was for."""

    advice = "see that no second job shares this store and NVRX_JOB_ID, and that WORLD_SIZE counts every rank"


class RankAssignmentError(RestartError):
    """A rank assignment left the round without a valid answer.

    Attributes:
        rank: the wrapper rank it answered for.
        world_size: the wrapper's world size.
    """

    advice = "correct the rank_assignment of the Wrapper; every rank must compute the same answer from the same round"

    def __init__(
        self, *args: object, rank: int | None = None, world_size: int | None = None, advice: str | None = None
    ) -> None:
        super().__init__(*args, advice=advice)
        self.rank, self.world_size = rank, world_size


class RankDiscarded(RestartError):
    """This rank has no place in the next iteration.

    Attributes:
        rank: its wrapper rank in the iteration that ended.
        terminated: all wrapper ranks that lost their place with it.
    """

    advice = (
        "nothing, if the others are to go on without this rank; it can come back only when the job is started again"
    )

    def __init__(
        self, *args: object, rank: int | None = None, terminated: Iterable[int] = (), advice: str | None = None
    ) -> None:
        super().__init__(*args, advice=advice)
        self.rank, self.terminated = rank, tuple(terminated)


class FaultCounterExceeded(RestartError):
    """This rank failed more often than `FaultCounter` allows.

    Attributes:
        faults: how often it failed.
        limit: how often it may.
    """

    advice = "check this rank's device and host before it takes part again, or raise max_rank_faults"

    def __init__(
        self, *args: object, faults: int | None = None, limit: int | None = None, advice: str | None = None
    ) -> None:
        super().__init__(*args, advice=advice)
        self.faults, self.limit = faults, limit


class ParameterError(ValueError):
    """A parameter's value breaks its rule.

    Attributes:
        parameter: its name.
        value: the value given.
        rule: what the value must be.
        instead: what to write instead, "" where nothing is known.
    """

    def __init__(self, parameter: str, value: object, rule: str, instead: str = "") -> None:
        super().__init__(parameter, value, rule, instead)
        self.parameter, self.value, self.rule, self.instead = parameter, value, rule, instead

    def __str__(self) -> str:
        return f"{self.parameter}={shown(self.value)}: must be {self.rule}{_write(self.instead)}"


class ParameterTypeError(TypeError):
    """A parameter's value has the wrong type.

    Attributes:
        parameter: its name.
        value: the value given.
        expected: the name of the type that belongs there.
        instead: what to write instead, "" where nothing is known.
    """

    _COMMA: ClassVar[str] = "; a trailing comma makes a tuple: remove the comma after the value"

    def __init__(self, parameter: str, value: object, expected: str, instead: str = "") -> None:
        super().__init__(parameter, value, expected, instead)
        self.parameter, self.value, self.expected, self.instead = parameter, value, expected, instead

    def __str__(self) -> str:
        hint = self._COMMA if isinstance(self.value, tuple) else _write(self.instead)
        found = type(self.value).__name__
        return f"{self.parameter}={self.value!r}: must be of type {self.expected}, not {found}{hint}"


def require(holds: bool, parameter: str, value: object, rule: str) -> None:
    """Check one value rule.

    Raises:
        ParameterError: a `ValueError`, unless the rule holds.
    """
    if not holds:
        raise ParameterError(parameter, value, rule)


def require_type(parameter: str, value: object, expected: type) -> None:
    """Check one type rule; the error says what to write instead, where that can be told from the value.

    A tuple is what a stray trailing comma makes: the error names the comma.

    Raises:
        ParameterTypeError: a `TypeError`, unless `value` is an instance of `expected`.
    """
    if not isinstance(value, expected):
        raise ParameterTypeError(parameter, value, expected.__name__, _instead(parameter, value, expected))


def shown(value: object) -> str:
    """A value as errors show it: a time in seconds, anything else by `repr`."""
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else repr(value)


def _instead(parameter: str, value: object, expected: type) -> str:
    if expected is timedelta and isinstance(value, int | float):
        return f"{parameter}=timedelta(seconds={value!r})"
    if expected is int and isinstance(value, str) and value.lstrip("-").isdigit():
        return f"{parameter}={value}"
    if isinstance(value, type) and issubclass(value, expected):
        return f"{parameter}={value.__name__}()"
    return ""


def _write(instead: str) -> str:
    return f"; write {instead}" if instead else ""
