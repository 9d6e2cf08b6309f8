"""Forks, and what other threads import."""

from __future__ import annotations

import os
import threading
import time

from nvrx_core.process.forks import forks_waiting


def exit_code_of_child() -> int:
    """Fork a child that imports, as a thread of its parent does, and return the code with which it ends."""
    child = os.fork()
    if child == 0:
        with forks_waiting():
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_until_another_thread_has_imported() -> None:
    begun, imported = threading.Event(), list[float]()

    def load() -> None:
        with forks_waiting():
            begun.set()
            threading.Event().wait(0.1)
            imported.append(time.monotonic())

    thread = threading.Thread(target=load)
    thread.start()
    begun.wait()
    assert exit_code_of_child() == 7, "the child may import"
    assert imported, "the fork came after"
    thread.join()
    assert exit_code_of_child() == 7, "nothing is held afterwards"
    with forks_waiting():
        pass
