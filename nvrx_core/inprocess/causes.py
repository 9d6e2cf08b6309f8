"""What an exception holds of others: its causes, its contexts, the members of a group.

Pure. `torch.distributed.checkpoint` gathers the exceptions of all ranks in one, whose `failures` they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["holds", "related"]


def related(error: BaseException | None) -> Iterator[BaseException]:
    """The error itself and all that it holds, each once."""
    seen = set[int]()
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found
            pending += [found.__context__, found.__cause__, *_members(found)]


def holds(error: BaseException | None, wanted: BaseException) -> bool:
    """Whether `wanted` is the error, or among what it holds."""
    return any(each is wanted for each in related(error))


def _members(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions
    failures = getattr(error, "failures", None) if type(error).__module__.startswith("torch.distributed.") else None
    if not isinstance(failures, Mapping):
        return ()
    return [part for value in failures.values() for part in _parts(value) if isinstance(part, BaseException)]


def _parts(value: object) -> Iterable[object]:
    return value if isinstance(value, tuple) else (value,)
