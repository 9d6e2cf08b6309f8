"""Mistakes of the first hour, as real scripts: each ends at once, with a line that says what to write instead.

The line names the parameter, what was given, and what to write; no frame of the package stands above it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import nvrx_core
from tests.harness.process.job import Job
from tests.harness.process.launch import RUN_SCRIPT
from tests.harness.process.netns import network
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

SCRIPT = """\
import asyncio
import multiprocessing
import os
import signal
import threading
from datetime import timedelta
import torch.distributed as dist
from nvrx_core.inprocess import CallWrapper, Compose, Wrapper
from nvrx_core.inprocess.abort import Abort, AbortTorchDistributed
from nvrx_core.inprocess.finalize import ThreadedFinalize
from nvrx_core.inprocess.health_check import CudaHealthCheck
from nvrx_core.inprocess.rank_assignment import *
from nvrx_core.inprocess.store import TCPStore

{body}
"""
PACKAGE = str(Path(nvrx_core.__file__).parent)


@dataclass(frozen=True)
class Mistake:
    """What is written, what is told, and the environment; a variable that is None is left out."""

    body: str
    told: tuple[str, ...]
    environment: dict[str, str | None] = field(default_factory=dict)
    frames: int = 0
    """Frames of the package in the traceback: those of what the user has called itself, outside `Wrapper`."""


SECONDS = "soft_timeout=30: must be of type timedelta, not int; write soft_timeout=timedelta(seconds=30)"


def plain(parameters: str, *told: str, frames: int = 0, **environment: str | None) -> Mistake:
    """A mistake in the parameters of `Wrapper`, or in the environment."""
    body = f"@Wrapper({parameters})\ndef train():\n    print('entered')\ntrain()"
    return Mistake(body, told, environment, frames)


def call(definition: str, called: str, *told: str) -> Mistake:
    """A mistake in the function, or in its call."""
    return Mistake(f"@Wrapper()\n{definition}\n{called}", told)


MISTAKES = {
    "imported from elsewhere": Mistake(
        "from nvrx_core import Wrapper", ("write from nvrx_core.inprocess import Wrapper",), frames=1
    ),
    # the decorator
    "no parentheses": Mistake("@Wrapper\ndef train(): pass", ("write @Wrapper() above it",)),
    "a parameter without its name": plain("timedelta(seconds=9)", "takes its parameters by name", "Wrapper(name=...)"),
    "unknown parameter": plain("soft_timeuot=timedelta(seconds=9)", "no parameter soft_timeuot; write soft_timeout="),
    "async function": call("async def train(): pass", "", "whose body is: asyncio.run(train(...))"),
    "async generator": call("async def train(): yield", "", "train is an async generator function"),
    "generator": call("def train(): yield", "", "train is a generator function"),
    "class method": Mistake(
        "class A:\n    @Wrapper()\n    @classmethod\n    def train(cls): pass", ("write @classmethod above @Wrapper()",)
    ),
    "the result instead of the function": Mistake(
        "def train(): pass\nWrapper()(train())", ("not None; write Wrapper()(train), and call what it returns",)
    ),
    # the call
    "argument missing": call("def train(model): pass", "train()", "'model'; call it as train(model)"),
    "too many arguments": call("def train(model): pass", "train(1, 2)", "too many positional", "train(model)"),
    "unknown argument": call("def train(model=1): pass", "train(modle=1)", "'modle'; call it as train(model=1)"),
    "annotation missing": call("def train(cw): pass", "train()", "'cw'", "its annotation, call_wrapper: CallWrapper"),
    "annotation misspelt": call("def train(cw: 'CallWraper'): pass", "train()", "call_wrapper: CallWrapper"),
    "nested": Mistake(
        "@Wrapper()\ndef inner(): pass\n@Wrapper()\ndef outer(): inner()\nouter()",
        ("wrap the outer function only; its restarts cover what it calls",),
    ),
    "a group before the call": Mistake(
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "Wrapper()(print)()",
        ("a process group exists already; create it inside the wrapped function",),
    ),
    "called in a forked child": Mistake(
        "def again(): os._exit(train() or 7)\n"
        "@Wrapper()\ndef train():\n"
        "    child = multiprocessing.get_context('fork').Process(target=again)\n"
        "    child.start(); child.join()\n"
        "    raise SystemExit(child.exitcode)\n"
        "train()",
        ("a child of the rank in process", "call it in the rank only"),
    ),
    "called in two threads": Mistake(
        "inside, over = threading.Event(), threading.Event()\n"
        "@Wrapper()\ndef train():\n    inside.set(); over.wait(20)\n"
        "first = threading.Thread(target=train); first.start(); inside.wait(20)\n"
        "try:\n    train()\nfinally:\n    over.set(); first.join()",
        ("a wrapped function was called in a second thread", "a process is one rank"),
    ),
    "ping after the call": Mistake(
        "kept = []\n@Wrapper()\ndef train(cw: CallWrapper): kept.append(cw)\ntrain()\nkept[0].ping()",
        ("ping() after the call of the wrapped function: a CallWrapper belongs to one iteration",),
        frames=1,
    ),
    "atomic in a thread": Mistake(
        "errors = []\n"
        "def save(cw):\n    try:\n        cw.atomic().__enter__()\n    except RuntimeError as error:\n"
        "        errors.append(error)\n"
        "@Wrapper()\ndef train(cw: CallWrapper):\n"
        "    other = threading.Thread(target=save, args=(cw,)); other.start(); other.join()\n"
        "train()\nraise errors[0]",
        ("atomic() belongs to the thread that runs the wrapped function; enter it there",),
        frames=1,
    ),
    # times and numbers
    "seconds": plain("soft_timeout=30", SECONDS),
    "seconds as text": plain("soft_timeout='30'", "'30'", "write soft_timeout=timedelta(seconds=30)"),
    "days": plain("soft_timeout=timedelta(60)", "soft_timeout=timedelta(seconds=60): timedelta(60) counts days"),
    "negative": plain("soft_timeout=timedelta(seconds=-5)", "-5 s: must be positive; write", "(seconds=5)"),
    "timeout too long": plain(
        "soft_timeout=timedelta(seconds=100)", "soft_timeout=100 s: must be shorter than hard_timeout=90 s"
    ),
    "timeout too short for a default": plain(
        "hard_timeout=timedelta(seconds=30)", "longer than soft_timeout=60 s, which is the default", "as well"
    ),
    "timeouts in the wrong order": plain(
        "soft_timeout=timedelta(seconds=9), hard_timeout=timedelta(seconds=5)", "soft_timeout=9 s", "hard_timeout=5 s"
    ),
    "a number as text": plain("no_progress_limit='3'", "write no_progress_limit=3"),
    "no restart at all": plain("no_progress_limit=0", "no_progress_limit=0: must be at least 1, or None for no limit"),
    # plug-ins
    "a class": plain("abort=AbortTorchDistributed", "write abort=AbortTorchDistributed()"),
    "a class of a health check": plain("health_check=CudaHealthCheck", "write health_check=CudaHealthCheck()"),
    "a list": plain("abort=[AbortTorchDistributed()]", "write abort=Compose(AbortTorchDistributed(...))"),
    "a trailing comma": plain("abort=(AbortTorchDistributed(),)", "remove the comma after the value"),
    "a function": plain("initialize=print", "an instance of a class that derives from Initialize"),
    "another kind of plug-in": plain(
        "finalize=AbortTorchDistributed()", "finalize=", "must be of type Finalize, not AbortTorchDistributed"
    ),
    "a composition of two kinds": plain(
        "abort=Compose(AbortTorchDistributed(), CudaHealthCheck())", "abort=Compose(", "must be of type Abort"
    ),
    # rank assignment
    "a class of an assignment": plain("rank_assignment=ShiftRanks", "write rank_assignment=ShiftRanks()"),
    "a move after a filter": plain(
        "rank_assignment=Compose(ShiftRanks(), ActivateAllRanks())",
        "write rank_assignment=Compose(ActivateAllRanks(), ShiftRanks())",
    ),
    "a filter alone": plain(
        "rank_assignment=MaxActiveWorldSize(8)",
        "write rank_assignment=Compose(MaxActiveWorldSize(max_active_world_size=8), ShiftRanks())",
    ),
    "nobody active": plain(
        "rank_assignment=Compose(MaxActiveWorldSize(0), ShiftRanks())", "leaves none of 1 ranks active", "at least one"
    ),
    "a limit as text": plain(
        "rank_assignment=Compose(MaxActiveWorldSize('8'), ShiftRanks())", "write max_active_world_size=8", frames=2
    ),
    "a divisor of nothing": plain(
        "rank_assignment=ActiveWorldSizeDivisibleBy(0)", "divisor=0: must be at least 1", frames=2
    ),
    "a tree without layers": plain("rank_assignment=Tree([])", "layers=", "at least one Layer", frames=1),
    "a key that is a list": plain(
        "rank_assignment=Compose(ShiftRanks(), FilterCountGroupedByKey(lambda state: ['rack'], lambda count: True))",
        "the key of key_or_fn=['rack']: must be of type Hashable, not list; write return str(key)",
    ),
    "a key function of three": plain(
        "rank_assignment=Compose(ShiftRanks(), FilterCountGroupedByKey(lambda a, b, c: 0, bool))",
        "key_or_fn=", "f(state) or f(rank, world_size)", frames=4,
    ),
    # the store
    "torch's store": plain("store_factory=dist.TCPStore", "write store_factory=nvrx_core.inprocess.store.TCPStore"),
    "an argument of the store": plain(
        "store_kwargs={'prot': 29600}", "store_kwargs={'prot': 29600}: must be arguments of TCPStore(", "'prot'"
    ),
    "a port as text": plain("store_kwargs={'port': '29600'}", "write port=29600"),
    "an endpoint with a scheme": plain(
        "", "write NVRX_STORE_ENDPOINT=node7:29501 or [fd00::7]:29501, without a scheme", NVRX_STORE_ENDPOINT="http://127.0.0.1:29501"
    ),
    "an endpoint without a port": plain("", "='node7' is not host:port", NVRX_STORE_ENDPOINT="node7"),
    "nobody listens": plain(
        "store_kwargs={'timeout': timedelta(seconds=0.2)}",
        "no control store on 127.0.0.1:9 within 0.2 s", "running and reachable?", NVRX_STORE_ENDPOINT="127.0.0.1:9",
    ),
    "no MASTER_ADDR": plain(
        "store_kwargs={'timeout': timedelta(seconds=0.2)}",
        "no control store on 127.0.0.1:", "that address is this machine", "name its host in MASTER_ADDR",
        RANK="1", WORLD_SIZE="2", MASTER_ADDR=None,
    ),
    # the environment
    "RANK alone": plain("", "RANK='0' is set alone; set RANK and WORLD_SIZE, or neither", WORLD_SIZE=None),
    "RANK out of range": plain("", "RANK=2 is not in the range", "are 0 to 1", RANK="2", WORLD_SIZE="2"),
    "RANK as text": plain("", "RANK='first' is not a whole number", RANK="first"),
    "WORLD_SIZE of nothing": plain("", "WORLD_SIZE=0 is below 1", WORLD_SIZE="0"),
    "MASTER_PORT as text": plain("", "MASTER_PORT='a' is not a whole number", "MASTER_PORT=29500", MASTER_PORT="a"),
    "MASTER_PORT out of range": plain("", "MASTER_PORT=70000 is not in the range", MASTER_PORT="70000"),
    "MASTER_ADDR unknown": plain(
        "", "cannot host the control store on no.such.host:", "MASTER_ADDR", MASTER_ADDR="no.such.host"
    ),
    # files and signals
    "events_dir is a file": plain("events_dir='/etc/hostname'", "events_dir='/etc/hostname': must be a directory"),
    "events_dir is a number": plain("events_dir=7", "events_dir=7: must be of type str or os.PathLike, not int"),
    "a relative log file": plain("monitor_process_logfile='log.txt'", "logfile='log.txt': must be an absolute path"),
    "an unknown field": plain("monitor_process_logfile='/tmp/{rnk}'", "'/tmp/{rnk}'", "{rank} is the only field"),
    "SIGKILL": plain("interrupt_signal=signal.SIGKILL", "interrupt_signal=", "signal.SIGRTMIN + 8"),
    "a signal's name": plain("interrupt_signal='SIGUSR1'", "write interrupt_signal=signal.SIGUSR1"),
    "an unknown word": plain("thread_exceptions='faults'", "thread_exceptions='faults': must be 'log' or 'fault'"),
}  # fmt: skip


def in_a_rank(job: Job, body: str, **environment: str | None) -> tuple[int, str]:
    """Runs the script as a rank; what it wrote to stderr. The template has torch imported, which takes seconds."""
    script = job.directory / "script.py"
    script.write_text(SCRIPT.format(body=body))
    started = {"WORLD_SIZE": "1", "NVRX_EVENTS_DIR": None, "NVRX_TEST_PLAN": None, **environment}
    job.pids[0] = job.template.fork(RUN_SCRIPT, [str(script)], job.environment(0, **started), job.directory / "rank-0")
    job.finish(20)
    return job.codes[0], job.errors(0)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_at_once_and_says_what_to_write(prepare: Launch, mistake: str) -> None:
    case, job = MISTAKES[mistake], prepare(world=1, store=False)
    code, told = in_a_rank(job, case.body, **case.environment)
    last = told.splitlines()[-1]
    assert code == 1, told
    for part in case.told:
        assert part in last, told
    assert told.rpartition("Traceback")[2].count(f'File "{PACKAGE}') <= case.frames, told
    assert "restart 1" not in told
    assert_no_process_left(job)


def test_the_table_has_forty_mistakes() -> None:
    assert len(MISTAKES) >= 40


def by_hand(tmp_path: Path, body: str, host: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs the script in an interpreter of its own, with nothing set that it does not need."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body))
    ours = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*host, sys.executable, str(script)]
    return subprocess.run(command, env=ours, capture_output=True, text=True, timeout=60, check=False)


def test_a_mistake_shows_the_users_line_and_the_message(tmp_path: Path) -> None:
    done = by_hand(tmp_path, MISTAKES["seconds"].body)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        f'  File "{tmp_path / "script.py"}", line 15, in <module>',
        "    @Wrapper(soft_timeout=30)",
        "     ^^^^^^^^^^^^^^^^^^^^^^^^",
        f"nvrx_core.errors.ParameterTypeError: {SECONDS}",
    ]


def test_a_script_without_any_environment_is_a_world_of_one(tmp_path: Path) -> None:
    body = "@Wrapper()\ndef train():\n    dist.init_process_group('gloo')\n    print(dist.get_world_size())\ntrain()"
    with network(1) as hosts:  # its default port belongs to nobody else there
        done = by_hand(tmp_path, body, hosts.command(0))
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "restart" not in done.stderr


def test_a_port_that_is_taken_is_named(prepare: Launch) -> None:
    job = prepare(world=1, store=False)
    with socket.create_server(("127.0.0.1", job.port + 1)):
        code, told = in_a_rank(job, "Wrapper()(print)()")
    assert code == 1
    last = told.splitlines()[-1]
    assert f"cannot host the control store on 127.0.0.1:{job.port + 1}: Address already in use; free the port" in last
    assert "store_kwargs={'port': " in last
