"""The event loop: what was readable when the turn began may be gone, or be something else, when it is its turn."""

from __future__ import annotations

import os
from contextlib import closing

from nvrx_launcher.loop import EventLoop


def test_a_descriptor_whose_number_is_used_again_in_the_same_turn_is_not_mistaken_for_the_former() -> None:
    pipes, called = [os.pipe() for _ in range(2)], list[str]()
    with closing(EventLoop()) as loop:

        def read(which: int) -> None:
            """Replace the other pipe by one that has the same number."""
            called.append("former")
            other = pipes[1 - which][0]
            loop.forget(other)
            os.dup2(pipes[which][0], other)
            loop.watch(other, lambda: called.append("new"))

        for which, (reader, writer) in enumerate(pipes):
            os.write(writer, b"x")
            loop.watch(reader, lambda which=which: read(which))  # type: ignore[misc]
        loop.turn(0.0)
        assert called == ["former"]
        for reader, _ in pipes:
            loop.forget(reader)
    for fd in (fd for pipe in pipes for fd in pipe):
        os.close(fd)
