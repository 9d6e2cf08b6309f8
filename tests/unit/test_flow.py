"""How a flow is driven: its operations are carried out, their outcomes and failures go back into it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import pytest

from nvrx_core.flow import operation, run
from nvrx_core.process.forks import EndedInChild


class Port:
    """A port of production."""

    @operation
    def double(self, number: int) -> int:
        return 2 * number

    @operation
    def fail(self, error: BaseException) -> None:
        raise error


class Lock:
    """A lock that is taken more than once, of a function that makes a context manager for one time."""

    def __init__(self, once: Callable[[], AbstractContextManager[None]]) -> None:
        self.once = once

    def __enter__(self) -> None:
        self.held = self.once()
        self.held.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self.held.__exit__(*error)


class DoublePort(Protocol):
    def double(self, number: int) -> Awaitable[int]: ...


PORT = Port()


def test_a_flow_is_resumed_with_the_outcomes_and_returns_its_result() -> None:
    async def flow(port: DoublePort) -> tuple[int, int]:
        first = await port.double(2)
        return first, await port.double(number=first)

    assert run(flow(PORT)) == (4, 8)


def test_what_an_operation_raises_is_raised_where_it_is_awaited() -> None:
    async def flow() -> int:
        try:
            await PORT.fail(KeyError("gone"))
        except KeyError:
            return await PORT.double(3)
        return 0

    assert run(flow()) == 6


def test_what_a_flow_does_not_catch_comes_out() -> None:
    async def flow() -> None:
        await PORT.fail(SystemExit(75))

    with pytest.raises(SystemExit):
        run(flow())


def test_a_flow_whose_steps_cannot_begin_is_given_up() -> None:
    """As when user code has broken what surrounds a step: the flow cannot even be told."""
    begun = []

    async def flow() -> None:
        begun.append(True)
        await PORT.double(2)

    @contextmanager
    def broken() -> Iterator[None]:
        raise TypeError("'NoneType' object is not callable")
        yield

    with pytest.raises(TypeError, match="not callable"):
        run(flow(), Lock(broken))
    assert not begun


def test_a_step_that_cannot_begin_for_once_tells_the_flow() -> None:
    errors, begun = [KeyboardInterrupt()], []

    async def flow() -> int:
        try:
            await PORT.double(2)
            await PORT.double(3)
        except KeyboardInterrupt:
            return await PORT.double(4)
        return 0

    @contextmanager
    def interrupted() -> Iterator[None]:
        if begun and errors:
            raise errors.pop()
        begun.append(True)
        yield

    assert run(flow(), Lock(interrupted)) == 8


@pytest.mark.parametrize(("failing", "surrounded"), [(1, True), (2, False)])
def test_a_flow_is_told_of_a_failed_step_in_a_surrounded_one_if_there_is_one(failing: int, surrounded: bool) -> None:
    inside, told, count = [False], [], iter(range(10))

    async def flow() -> None:
        try:
            await PORT.double(2)
        except KeyboardInterrupt:
            told.append(inside[0])

    @contextmanager
    def step() -> Iterator[None]:
        if 1 <= next(count) <= failing:
            raise KeyboardInterrupt
        inside[0] = True
        yield
        inside[0] = False

    run(flow(), Lock(step))
    assert told == [surrounded]


def test_a_child_of_fork_passes_by_the_flow() -> None:
    caught = []

    async def flow() -> None:
        try:
            await PORT.fail(EndedInChild(result=3))
        except BaseException as error:
            caught.append(type(error))
            raise

    running = flow()
    with pytest.raises(EndedInChild):
        run(running)
    assert caught == []
    running.close()
    assert caught == [GeneratorExit]


def test_a_step_has_the_lock_and_an_operation_has_not() -> None:
    history = []

    @contextmanager
    def step() -> Iterator[None]:
        history.append("begins")
        yield
        history.append("ends")

    note = operation(lambda: history.append("operation"))

    async def flow() -> None:
        history.append("step")
        await note()
        history.append("step")

    run(flow(), Lock(step), lambda: history.append("stepped"))
    assert history == ["begins", "step", "ends", "stepped", "operation", "begins", "step", "stepped"]


class Interrupted(BaseException):
    """A signal handler's."""


class Connection:
    """What an operation uses."""

    def wait(self) -> None:
        """Be interrupted."""
        raise Interrupted


async def telling(first: Callable[[], Awaitable[Any]], second: Callable[[], Awaitable[Any]], tell: Any) -> str:
    """As the main thread's flow: tells the others of what ends it."""
    try:
        await first()
        await second()
    except GeneratorExit:
        raise
    except BaseException as error:  # boundary: as there
        await tell(error)
        raise
    return "done"


@operation
def nothing(*_: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(("moment", "at"), [("before", 2), ("after", 2), ("before", 3), ("stepped", 1), ("stepped", 2)])
def test_an_interruption_between_two_steps_reaches_the_flow(moment: str, at: int) -> None:
    told = list[BaseException]()
    steps, ended = iter(range(1, 10)), iter(range(1, 10))

    def stepped() -> None:
        if next(ended) == at and moment == "stepped":
            raise Interrupted

    @contextmanager
    def step() -> Iterator[None]:
        injected = next(steps) == at
        if injected and moment == "before":
            raise Interrupted
        yield
        if injected and moment == "after":
            raise Interrupted

    with pytest.raises(Interrupted):
        run(telling(nothing, nothing, operation(told.append)), Lock(step), stepped)
    assert isinstance(told[0], Interrupted)


def test_what_a_flow_raises_keeps_nothing_of_the_call() -> None:
    connection = Connection()
    dropped = weakref.ref(connection)
    used = list[int]()
    first = operation(lambda held=connection: used.append(id(held)))

    interrupted = operation(connection.wait)
    gc.disable()
    try:
        with pytest.raises(Interrupted) as caught:
            run(telling(first, interrupted, nothing))
        assert used == [id(connection)]
        del first, interrupted, connection
        assert dropped() is None, "the traceback keeps the connection"
        error = weakref.ref(caught.value)
        del caught
        assert error() is None, "the error is in a cycle"
    finally:
        gc.enable()


def test_what_an_operation_raises_is_the_flows_even_if_it_looks_like_its_end() -> None:
    async def flow() -> None:
        await PORT.fail(StopIteration("no end"))

    with pytest.raises(RuntimeError, match="StopIteration"):
        run(flow())
