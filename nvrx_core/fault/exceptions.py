"""What is told of an exception, and what it holds of others: its causes, its contexts, the members of a group.

Pure. `torch.distributed.checkpoint` gathers the exceptions of all ranks in one, whose `failures` they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["holds", "related", "text_of", "type_name"]


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


def text_of(error: BaseException) -> str:
    """Type and text of an exception; where its `__str__` raises, what that raised."""
    try:
        text = str(error)
    except BaseException as failure:  # boundary: the user's code; the fault is told all the same
        text = f"(no text: its __str__ raised {type_name(type(failure))})"
    return f"{type_name(type(error))}: {text}"


def type_name(kind: type[BaseException]) -> str:
    """The name of an exception's type, with its module where it is none of the built-in ones."""
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _members(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions
    failures = getattr(error, "failures", None) if type(error).__module__.startswith("torch.distributed.") else None
    if not isinstance(failures, Mapping):
        return ()
    return [part for value in failures.values() for part in _parts(value) if isinstance(part, BaseException)]


def _parts(value: object) -> Iterable[object]:
    return value if isinstance(value, tuple) else (value,)
