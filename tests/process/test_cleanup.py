"""What is cleaned up raises: in finalize, in a destructor, at the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.harness.process.host import free_ports
from tests.harness.process.oracle import assert_nothing_lost, restart

from .conftest import Launch


def test_a_rank_whose_finalize_raises_leaves_and_says_so(launch: Launch) -> None:
    job = launch({(1, 0, 3): "exception"}, finalize_fails=1).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[1], lost=[1]), codes={1: 1})
    assert "ValueError: injected in finalize" in job.errors(1).splitlines()[-1]


def test_destructors_and_exit_handlers_that_raise_cost_nothing(launch: Launch) -> None:
    job = launch({(1, 0, 3): "exception", (0, 1, 3): "exception"}, untidy=True).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[1]), restart("EXCEPTION", by=[0]))
    for rank in range(3):
        assert "injected in __del__" in job.errors(rank)
        assert "injected at exit" in job.errors(rank)


def test_finalize_runs_between_the_end_of_the_frames_and_the_collection_of_garbage() -> None:
    """So what an interrupted iteration has left can be kept there; and nothing is aborted in an atomic section."""
    program = """
import gc, threading, time, weakref
from nvrx_core import inprocess
from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.finalize import Finalize

gc.disable()  # the wrapper collects by itself
order, held = [], {}

class Held:
    pass

def alive():
    return sorted(name for name, found in held.items() if found() is not None)

class Aborts(Abort):
    def __call__(self, state):
        order.append("abort")
        return state

class Leaves(Finalize):
    def __call__(self, state):
        order.append(f"finalize: {alive()}")
        return state

def fail():
    raise RuntimeError("a fault, while the main thread is in an atomic section")

@inprocess.Wrapper(abort=Aborts(), finalize=Leaves(), thread_exceptions="fault")
def train(call_wrapper: inprocess.CallWrapper):
    if call_wrapper.iteration:
        order.append(f"entered: {alive()}")
        return
    plain, cycle = Held(), Held()
    cycle.me = cycle
    held.update(plain=weakref.ref(plain), cycle=weakref.ref(cycle))
    with call_wrapper.atomic():
        threading.Thread(target=fail).start()
        time.sleep(0.5)
        order.append("atomic")
    time.sleep(60)

train()
print("; ".join(order))
"""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports())}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True, env=environment)
    assert done.stdout == "atomic; abort; finalize: ['cycle']; entered: []\n", done.stderr
