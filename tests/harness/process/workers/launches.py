"""Launches functions: `launches.py CASE START_METHOD`, which prints what comes of it as JSON lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvrx_launcher import LaunchConfig, elastic_launch

CASE, METHOD = sys.argv[1:3] if len(sys.argv) > 2 else ("", "")


def config(**more: Any) -> LaunchConfig:
    return LaunchConfig(1, 1, 2, start_method=METHOD, **{"max_restarts": 0, **more})


def say(**fields: Any) -> None:
    os.write(1, f"{json.dumps(fields)}\n".encode())


def told(first: str, second: int) -> dict[str, Any]:
    """What a worker finds."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS", "GIVEN")
    with open("/proc/self/environ", "rb") as file:
        at_start = b"NVRX_LAUNCH_ID=" in file.read()
    return {
        "first": first, "second": second, "environ": {name: os.environ.get(name) for name in names},
        "is_leader": os.getpgid(0) == os.getpid() != os.getppid(), "has_tag_from_the_start": at_start,
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "sigterm": str(signal.getsignal(signal.SIGTERM)),
    }  # fmt: skip


def large(_: str) -> bytes:
    """More than a pipe holds."""
    return bytes(1 << 22)


def raises_on_1() -> None:
    """Rank 1 raises."""
    if os.environ["RANK"] == "1":
        raise ValueError("on purpose")
    time.sleep(60)


def recovers() -> str:
    """Rank 1 is killed in the first cycle."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def exits() -> None:
    """Ends by itself, with a code that is no failure."""
    sys.exit(0)


def exits_with_3() -> None:
    """Ends by itself."""
    sys.exit(3)


def waits() -> None:
    """Waits, with a child that has a session of its own."""
    code = "import time; print('x', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        say(pid=os.getpid(), child=child.pid)
        time.sleep(60)


def returns() -> None:
    """Each worker's result, by rank."""
    os.environ["GIVEN"] = "1"
    found = elastic_launch(config(), told)("${local_rank}", 2)
    say(found=found, environ={name: os.environ.get(name) for name in ("RANK", "NVRX_LAUNCH_ID")})
    say(sizes=[len(each) for each in elastic_launch(config(), large)("").values()])
    say(restarted=elastic_launch(config(max_restarts=1), recovers)())
    say(exited=elastic_launch(config(), exits)())


def fails() -> None:
    """What is raised here, and what `record` passes on of it."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

    try:
        record(elastic_launch(config(), raises_on_1))()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        passed_on = json.loads(Path(os.environ["TORCHELASTIC_ERROR_FILE"]).read_text())
        say(rank=rank, code=failure.exitcode, message=failure.message, text=str(error), passed_on=passed_on["message"])
    try:
        elastic_launch(config(), exits_with_3)()
    except ChildFailedError as error:
        say(codes=sorted({each.exitcode for each in error.failures.values()}))


def runs_programs() -> None:
    """A program in place of a function; torch's own configuration; a wrong one."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig as TorchConfig

    from nvrx_core.errors import ConfigurationError

    say(program=elastic_launch(config(), sys.executable)("-c", "import os; assert os.environ['RANK'] in '01'"))
    specs = DefaultLogsSpecs(log_dir=os.environ["LOGS"], redirects=Std.OUT)
    theirs = TorchConfig(1, 1, 2, logs_specs=specs, rdzv_backend="c10d", run_id="theirs", start_method=METHOD)
    say(theirs=elastic_launch(theirs, printed)("text"))
    say(logs=sorted(path.read_text() for path in Path(os.environ["LOGS"]).rglob("stdout.log")))
    for wrong in ({"start_method": "thread"}, {"max_restarts": -1}, {"fault_tolerance": {"safety_factr": 2}}):
        try:
            elastic_launch(LaunchConfig(1, 1, 1, **wrong), exits)()
        except ConfigurationError as error:
            say(wrong=str(error))


def printed(text: str) -> str:
    print(text)
    return text


def runs_on_two_nodes() -> None:
    """torch's configuration of a static rendezvous, on the node and at the endpoint in the environment."""
    from torch.distributed.launcher.api import LaunchConfig as TorchConfig

    static = {"rdzv_backend": "static", "rdzv_configs": {"rank": int(os.environ["NODE"]), "timeout": 60}}
    theirs = TorchConfig(2, 2, 1, run_id="two", rdzv_endpoint=os.environ["ENDPOINT"], start_method=METHOD, **static)
    ranks = elastic_launch(theirs, recovers_on_two_nodes)()
    say(ranks=ranks, threads=[each.name for each in threading.enumerate() if each.name.startswith("nvrx")])


def recovers_on_two_nodes() -> str:
    """Rank 1 is killed in the first cycle."""
    recovers()
    return os.environ["GROUP_RANK"]


def waits_for_a_signal() -> None:
    """The signal that ends it."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    before = signal.getsignal(signal.SIGTERM)
    try:
        elastic_launch(config(), waits)()
    except SignalException as error:
        say(signal=error.sigval.name, restored=signal.getsignal(signal.SIGTERM) == before)


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case for case in (returns, fails, runs_programs, runs_on_two_nodes, waits_for_a_signal)
}

if __name__ == "__main__":
    CASES[CASE]()
