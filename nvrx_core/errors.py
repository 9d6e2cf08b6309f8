"""The exception hierarchy. Every exception carries its facts as fields, and its text ends with what to do next.

```text
BaseException
├── RestartAbort                    no further restart: every rank exits
│   └── PeerExited, UsageError      also a SystemExit; a call that is wrong in the program
├── SystemExit ─ StoreLost          the control store is lost: the process exits with code 75
└── Exception
    ├── RestartError                base of the errors that a restart may raise
    │   ├── BarrierError            ─ BarrierTimeout, BarrierOverflow
    │   ├── RankDiscarded           this rank is excluded from the next iteration
    │   ├── RankAssignmentError     no valid assignment; also a RuntimeError
    │   └── HealthCheckError, FaultCounterExceeded, TimeoutError, JobMismatch, InternalError
    └── ParameterError, ConfigurationError, both a ValueError; ParameterTypeError, a TypeError
```
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import ClassVar, Final

from nvrx_core.parsing import endpoint_text

__all__ = [
    "BarrierError", "BarrierOverflow", "BarrierTimeout", "ConfigurationError", "FaultCounterExceeded",
    "HealthCheckError", "InternalError", "JobMismatch", "ParameterError", "ParameterTypeError", "PeerExited",
    "RankAssignmentError", "RankDiscarded", "RestartAbort", "RestartError", "StoreLost", "TimeoutError", "UsageError",
    "first_line", "require", "require_type", "shown",
]  # fmt: skip

STORE_LOST: Final = 75
USAGE: Final = 2


class _Explained(BaseException):
    """An exception with a message, fields, and `advice`: what to do next, by default that of the class."""

    advice: str = ""

    def __init__(self, *args: object, advice: str | None = None) -> None:
        super().__init__(*args)
        if advice is not None:
            self.advice = advice

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}. Next: {self.advice}" if text and self.advice else text or self.advice


class RestartAbort(_Explained):
    """The end of all restarts on the rank that raises it. Raised on every rank, it ends the job.

    Attributes:
        culprit: the initial rank that caused it, None when no single rank did.
    """

    advice = "fix the cause and start the job again; this rank does not restart by itself"

    def __init__(self, *args: object, culprit: int | None = None, advice: str | None = None) -> None:
        super().__init__(*args, advice=advice)
        self.culprit = culprit


class PeerExited(RestartAbort, SystemExit):
    """The end of the job because a rank has exited: this process ends with the exit code of that rank.

    Attributes:
        culprit: the initial rank that has exited.
        exit_code: its exit code: n for `sys.exit(n)`, 128 + n for signal n.
    """

    advice = "find out why that rank has exited, and start the job again"

    def __init__(self, *args: object, exit_code: int, culprit: int | None = None, advice: str | None = None) -> None:
        super().__init__(*args, culprit=culprit, advice=advice)
        self.code = self.exit_code = exit_code

    def __reduce__(self) -> tuple[Callable[..., PeerExited], tuple[object, ...], dict[str, object]]:
        return functools.partial(type(self), exit_code=self.exit_code), self.args, vars(self)


class UsageError(RestartAbort):
    """A call that is wrong in the program, which no restart mends: the job ends, on all ranks.

    Attributes:
        culprit: the initial rank that has made it; None on that rank.
    """

    advice = "correct the call and start the job again"


class StoreLost(_Explained, SystemExit):
    """The loss of the control store's host; a `SystemExit` with code 75.

    Attributes:
        host: the host of the store.
        port: the port of the store.
    """

    advice = "find out why its process exited; a store outside the ranks (nvrx-store) outlives them"

    def __init__(self, host: str = "", port: int = 0, *, advice: str | None = None) -> None:
        super().__init__(f"the control store at {endpoint_text(host, port)} is lost", advice=advice)
        self.code = STORE_LOST
        self.host, self.port = host, port

    def __reduce__(self) -> tuple[type[StoreLost], tuple[str, int], dict[str, object]]:
        return type(self), (self.host, self.port), vars(self)


class RestartError(_Explained, Exception):
    """The base of the errors that a restart may raise."""


class HealthCheckError(RestartError):
    """A failed health check on this rank.

    Attributes:
        initial_rank: the rank, None when it is not known.
    """

    advice = "check this rank's device and host before it rejoins; the other ranks continue without it"

    def __init__(self, *args: object, initial_rank: int | None = None, advice: str | None = None) -> None:
        super().__init__(*args, advice=advice)
        self.initial_rank = initial_rank


class InternalError(RestartError):
    """A broken invariant of nvrx."""

    advice = "this is a bug in nvrx: report it with the log and the event files of all ranks"


class TimeoutError(RestartError):
    """A call with a timeout that did not return in time.

    Attributes:
        what: what was called.
        seconds: the timeout.
    """

    advice = "find what blocks the call, or allow it more time"

    def __init__(self, *args: object, what: str = "", seconds: float | None = None, advice: str | None = None) -> None:
        super().__init__(*args, advice=advice)
        self.what, self.seconds = what, seconds


class JobMismatch(RestartError):
    """The ranks of a job contradict each other: rank, world size, version of nvrx, or parameters."""

    advice = (
        "start each rank once, with a RANK of its own, and all of them with the same WORLD_SIZE, version of nvrx and "
        "parameters of Wrapper"
    )


class BarrierError(RestartError):
    """A failure of a barrier between the ranks.

    Attributes:
        barrier: the name of the barrier.
        arrived: how many ranks arrived.
        expected: how many ranks were expected.
    """

    def __init__(
        self, *args: object, barrier: str = "", arrived: int = 0, expected: int = 0, advice: str | None = None
    ) -> None:
        super().__init__(*args, advice=advice)
        self.barrier, self.arrived, self.expected = barrier, arrived, expected


class BarrierTimeout(BarrierError):
    """A barrier that not all ranks reached in time.

    Attributes:
        missing: the initial ranks that did not arrive, as far as they are known.
        seconds: how long the other ranks waited.
    """

    advice = "look at the logs of the missing ranks, or raise the barrier's timeout"

    def __init__(
        self, *args: object, barrier: str = "", arrived: int = 0, expected: int = 0, missing: Iterable[int] = (),
        seconds: float | None = None, advice: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(*args, barrier=barrier, arrived=arrived, expected=expected, advice=advice)
        self.missing, self.seconds = tuple(missing), seconds


class BarrierOverflow(BarrierError):
    """A barrier that more ranks reached than expected."""

    advice = "make sure that no second job shares this store and NVRX_JOB_ID, and that WORLD_SIZE counts every rank"


class RankAssignmentError(RestartError, RuntimeError):
    """An invalid result of the rank assignment.

    Attributes:
        rank: the wrapper rank that was assigned.
        world_size: the wrapper's world size.
    """

    advice = "correct the rank_assignment of the Wrapper; every rank must compute the same result from the same round"

    def __init__(
        self, *args: object, rank: int | None = None, world_size: int | None = None, advice: str | None = None
    ) -> None:
        super().__init__(*args, advice=advice)
        self.rank, self.world_size = rank, world_size


class RankDiscarded(RestartError):
    """The exclusion of this rank from the next iteration.

    Attributes:
        rank: its wrapper rank in the iteration that ended.
        terminated: all wrapper ranks that are excluded with it.
    """

    advice = "nothing, if the job may continue without this rank; it can rejoin only when the job is started again"

    def __init__(
        self, *args: object, rank: int | None = None, terminated: Iterable[int] = (), advice: str | None = None
    ) -> None:
        super().__init__(*args, advice=advice)
        self.rank, self.terminated = rank, tuple(terminated)


class FaultCounterExceeded(RestartError):
    """More faults of this rank than `FaultCounter` allows.

    Attributes:
        faults: how often the rank failed.
        limit: how often it may fail.
    """

    advice = "check this rank's device and host before it rejoins, or raise max_rank_faults"

    def __init__(
        self, *args: object, faults: int | None = None, limit: int | None = None, advice: str | None = None
    ) -> None:
        super().__init__(*args, advice=advice)
        self.faults, self.limit = faults, limit


class ParameterError(ValueError):
    """A parameter value that violates its rule.

    Attributes:
        parameter: the name of the parameter.
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
    """A parameter value of the wrong type.

    Attributes:
        parameter: the name of the parameter.
        value: the value given.
        expected: the name of the expected type.
        instead: what to write instead, "" where nothing is known.
    """

    _COMMA: ClassVar[str] = "; a trailing comma makes a tuple: remove the comma after the value"

    def __init__(self, parameter: str, value: object, expected: str, instead: str = "") -> None:
        super().__init__(parameter, value, expected, instead)
        self.parameter, self.value, self.expected, self.instead = parameter, value, expected, instead

    def __str__(self) -> str:
        comma = isinstance(self.value, tuple) and len(self.value) == 1
        hint = self._COMMA if comma else _write(self.instead)
        is_class, wants_class = isinstance(self.value, type), self.expected.startswith("type[")
        found = "another class" if wants_class else "the class itself"
        found = found if is_class else type(self.value).__name__
        return f"{self.parameter}={self.value!r}: must be of type {self.expected}, not {found}{hint}"


class ConfigurationError(ValueError):
    """A wrong setting, in one line: `place: key: what is wrong, why; what to do`.

    A command that ends by it exits with code 2 (`exit_code`).

    Attributes:
        place: where it is written: `file:line`, "environment", "command line", or the class that was given it.
        key: the setting as it is spelled there, "" where the whole file is meant.
        problem: what is wrong, and why.
        advice: what to do.
    """

    exit_code: ClassVar[int] = USAGE

    def __init__(self, place: str, key: str, problem: str, advice: str) -> None:
        super().__init__(place, key, problem, advice)
        self.place, self.key, self.problem, self.advice = place, key, problem, advice

    def __str__(self) -> str:
        text = ": ".join(filter(None, (self.place, self.key, f"{self.problem}; {self.advice}")))
        return " ".join(text.splitlines())


def require(holds: bool, parameter: str, value: object, rule: str) -> None:
    """Check that a value satisfies its rule.

    Raises:
        ParameterError: a `ValueError`, when it does not.
    """
    if not holds:
        raise ParameterError(parameter, value, rule)


def require_type(parameter: str, value: object, expected: type) -> None:
    """Check the type of a value; the error says what to write instead, where the value shows it.

    For a tuple, as a stray trailing comma makes one, the error mentions the comma.

    Raises:
        ParameterTypeError: a `TypeError`, unless `value` is an instance of `expected`.
    """
    if not isinstance(value, expected):
        raise ParameterTypeError(parameter, value, expected.__name__, _instead(parameter, value, expected))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; of one without a text, the name of its class."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def shown(value: object) -> str:
    """Return a value as errors show it: a duration in seconds, anything else by `repr`."""
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else repr(value)


def _instead(parameter: str, value: object, expected: type) -> str:
    """What to write instead of a value of the wrong type, "" where the value does not show it."""
    if isinstance(value, type) and issubclass(value, expected):
        return f"{parameter}={value.__name__}()"
    if expected is timedelta:
        seconds = _number(value)
        return "" if seconds is None else f"{parameter}=timedelta(seconds={seconds:g})"
    if expected is int:
        number = _number(value)
        of_a_signal = isinstance(value, str) and value.startswith("SIG")
        return f"{parameter}=signal.{value}" if of_a_signal else "" if number is None else f"{parameter}={number:g}"
    if isinstance(value, list | tuple) and value and all(isinstance(each, expected) for each in value):
        return f"{parameter}=Compose({', '.join(type(each).__name__ + '(...)' for each in value)})"
    if callable(value) and getattr(expected, "__abstractmethods__", ()) == {"__call__"}:
        return (
            f"{parameter}=..., an instance of a class that derives from {expected.__name__}, with that as its __call__"
        )
    return ""


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None


def _write(instead: str) -> str:
    return f"; write {instead}" if instead else ""
