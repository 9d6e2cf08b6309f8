"""The thread of a rank that tells where it is, in a process: its start, children of `os.fork`, and the ways out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_core.fault_tolerance import FaultToleranceConfig
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from tests.harness.process.monitored import environment_of

BEGIN = """
import atexit, os, resource, stat, sys, threading
from nvrx_core.fault_tolerance import RankMonitorClient
from nvrx_core.process.descriptors import identity

def after():  # registered before, runs after nvrx's callback
    sys.stdout.write(f"{[each.name for each in threading.enumerate()]}\\n")

atexit.register(after)
client = RankMonitorClient()
"""
INIT = "client.init_workload_monitoring()\nthread = client._rank._evidence_thread\n"
WAYS = {
    "its end": (0, ""),
    "sys.exit": (3, "sys.exit(3)"),
    "an exception": (1, "raise ValueError('from the script')"),
    "SystemExit in a thread": (0, "threading.Thread(target=sys.exit).start()"),
    "a thread that is not a daemon": (0, "import time; threading.Thread(target=time.sleep, args=(0.2,)).start()"),
    "shut down": (0, "client.shutdown_workload_monitoring()"),
}


@pytest.fixture
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a monitor under a launcher, which is not there."""
    folder = tmp_path_factory.mktemp("m")
    monitor = RankMonitorProcess(
        FaultToleranceConfig(), folder / "rank-0.socket", launcher=str(folder / "launcher.ipc")
    )
    monitor.start()
    yield folder / "rank-0.socket"
    monitor.terminate()


def run(monitor: Path, script: str) -> subprocess.CompletedProcess[str]:
    environment = environment_of(monitor.parent, RANK="0", FT_RANK_MONITOR_IPC_SOCKET=str(monitor))
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_there_is_none_where_the_launcher_gives_no_verdicts(tmp_path: Path) -> None:
    config = FaultToleranceConfig(hang_verdict=False)
    monitor = RankMonitorProcess(config, tmp_path / "rank-0.socket", launcher=str(tmp_path / "launcher.ipc"))
    monitor.start()
    try:
        done = run(tmp_path / "rank-0.socket", INIT + "assert thread is None\n")
    finally:
        monitor.terminate()
    assert (done.returncode, done.stdout) == (0, "['MainThread']\n"), done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_it_has_ended_before_the_interpreter_does(monitor: Path, way: str) -> None:
    """One that is in a call of torch while the interpreter is finalised would abort the process."""
    code, statement = WAYS[way]
    done = run(monitor, INIT + "assert thread._thread.is_alive()\n" + statement)
    assert (done.returncode, done.stdout) == (code, "['MainThread']\n"), done.stderr


def test_a_child_of_fork_has_none_of_its_descriptors(monitor: Path) -> None:
    script = (
        INIT
        + """
fds = list(thread._identities)
assert None not in map(identity, fds)
child = os.fork()
if child == 0:
    os._exit(sum(identity(fd) is not None for fd in fds))
print(len(fds), os.waitpid(child, 0)[1], [identity(fd) is not None for fd in fds])
"""
    )
    done = run(monitor, script)
    assert done.stdout == "3 0 [True, True, True]\n['MainThread']\n", done.stderr


def test_without_descriptors_for_it_the_rank_is_monitored_all_the_same(monitor: Path) -> None:
    script = (
        """
import logging
logging.basicConfig(level=logging.DEBUG)
from nvrx_core.fault_tolerance import attachment
def limited(*arguments):
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        return make(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
make, attachment.EvidenceThread = attachment.EvidenceThread, limited
"""
        + INIT
        + """
assert thread is None and client.is_initialized
client.send_heartbeat()
print("monitored", sum(identity(fd) is not None and stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in range(3, 64)))
"""
    )
    done = run(monitor, script)
    assert done.stdout == "monitored 0\n['MainThread']\n", done.stderr
    assert done.returncode == 0
    assert done.stderr.count("where this rank is in a hang is seen from outside only: [Errno 24]") == 1
