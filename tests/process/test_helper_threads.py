"""Each helper thread fails in turn: its launcher ends with a code and a line, or its user hears of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvrx_core.failpoint import THREAD_NAMES
from nvrx_core.testing import failpoints
from tests.harness.process.host import free_ports
from tests.harness.process.launch import WORKERS, Nodes, Start, path_with_handler, rendezvous_options

AT_FAILPOINTS = "tests.harness.process.launcher_at_failpoints"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
ENDS_WITHIN = 30.0
"""Seconds from the start of a launcher to its end; half of them are for its imports on a busy machine."""
OF_LAUNCHERS = {
    "nvrx-node": 75, "nvrx-decisions": 75, "nvrx-store-in-use": 75, "nvrx-coordinator": 75, "nvrx-inbox": 75,
    "nvrx-store-answer": 1, "nvrx-output": 75,
}  # fmt: skip
"""The threads of a launcher of several nodes, with its exit code; 1 where it has not connected yet."""
ELSEWHERE = {
    "nvrx-rendezvous-loop": (1, (
        "from nvrx_launcher.rendezvous.registration import register\n"
        "from torch.distributed.run import main\n"
        "register()\n"
        "main(['--nnodes', '1', '--rdzv-backend', 'nvrx-c10d', '--rdzv-id', 'job', '--rdzv-endpoint', {endpoint!r},"
        " '--no-python', 'true'])\n"
    )),
    "nvrx-store-query": (75, (
        "import os, socket\n"
        "from nvrx_launcher.store_program import main\n"
        "questions, asks = os.pipe()\n"
        "os.write(asks, b'0 5\\n')\n"
        "sys.stdin = os.fdopen(questions)\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "sys.argv[1:] = [str(listener.detach()), 'job']\n"
        "main()\n"
    )),
    "nvrx-store-alive": (75, (
        "import os, socket\n"
        "from nvrx_launcher.store_program import main\n"
        "sys.stdin = os.fdopen(os.pipe()[0])\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "sys.argv[1:] = [str(listener.detach()), 'job']\n"
        "main()\n"
    )),
    "nvrx-log-writer": (75, (
        "import time\n"
        "from nvrx_core.logs.file_writer import FileWriter\n"
        "from nvrx_core.logs.log_folder import LogFolders\n"
        "FileWriter(LogFolders(['/tmp']))\n"
        "time.sleep(60)\n"
    )),
    "nvrx-cycle-info": (1, (
        "import logging\n"
        "logging.basicConfig()\n"
        "from nvrx_launcher.cycle_info import CycleInfo\n"
        "from nvrx_launcher.rendezvous.messages import Decision, Member, DecisionKind\n"
        "info = CycleInfo('/tmp', 'job', '', {}, max_nodes=1)\n"
        "info.decided(Decision(DecisionKind.RUN, 0, '', members=(Member(0, 0, 1),)), 0)\n"
        "info.close()\n"
        "sys.exit(1)\n"
    )),
    "nvrx-attribution": (1, (
        "import logging\n"
        "logging.basicConfig()\n"
        "from nvrx_launcher.attribution_client import AttributionClient\n"
        "options = {'starts_within': 1.0, 'written_within': 0.0, 'advised': print}\n"
        "AttributionClient('http://127.0.0.1:9', '', {}, **options).finish(20.0)\n"
        "sys.exit(1)\n"
    )),
    "nvrx-local-monitor": (1, (
        "from nvrx_core.fault_tolerance.local import start_local_monitor\n"
        "start_local_monitor()\n"
    )),
    "nvrx-watchdog": (1, (
        "import datetime, time\n"
        "from nvrx_core.process.watchdog import ProgressWatchdog\n"
        "watchdog = ProgressWatchdog(3, None, datetime.timedelta(seconds=1))\n"
        "watchdog.start()\n"
        "while True:\n"
        "    watchdog.ping()\n"
        "    time.sleep(0.01)\n"
    )),
    "nvrx-evidence": (1, (
        "import logging\n"
        "logging.basicConfig()\n"
        "from nvrx_core.fault_tolerance.evidence import EvidenceThread, evidence_sockets\n"
        "from nvrx_core.progress.page import Page\n"
        "thread = EvidenceThread(evidence_sockets()[1], Page(1))\n"
        "thread.start()\n"
        "thread.close()\n"
        "sys.exit(1)\n"
    )),
    "nvrx-stacks": (1, (
        "import logging, os\n"
        "logging.basicConfig()\n"
        "from nvrx_core.process.stacks import Stacks\n"
        "stacks = Stacks()\n"
        "stacks.start()\n"
        "stacks._thread.join()\n"
        "assert 'File' in stacks.take(os.pidfd_open(os.getpid())), 'the signal answers as well'\n"
        "sys.exit(1)\n"
    )),
    "nvrx-hang-report": (1, (
        "import logging, threading\n"
        "logging.basicConfig()\n"
        "from types import SimpleNamespace\n"
        "from nvrx_core.inprocess.call.hang_reporter import HangReporter\n"
        "from nvrx_core.inprocess.state import State\n"
        "from nvrx_core.progress.page import Page, Stage\n"
        "page = Page(1)\n"
        "page.begin_round(0, 0, 1)\n"
        "page.enter(Stage.RUNNING)\n"
        "state, sample = State(rank=0, world_size=1), SimpleNamespace(stalled=True)\n"
        "reporter = HangReporter(\n"
        "    state, page, None, sample=sample, control_store=None, shortest=0.0\n"
        ")\n"
        "reporter.notice(0)\n"
        "reporter.finish()\n"
        "sys.exit(1)\n"
    )),
    "nvrx-owner-lock": (75, (
        "import select\n"
        "from nvrx_core.inprocess.monitor.process_ports import _end_of_owner\n"
        "from nvrx_core.process.owner_lock import OwnerLock\n"
        "select.select([_end_of_owner(OwnerLock())], [], [])\n"
    )),
}  # fmt: skip
"""Threads of other processes, with the code by which a program ends that uses them as users do."""
PRELUDE = """\
import sys
from nvrx_core.testing import failpoints
failpoints.install({schedule!r}, initial_rank=0)
"""


def schedule(name: str) -> str:
    return f"0:-1@{name}=exception"


def test_every_thread_is_tried() -> None:
    assert {*OF_LAUNCHERS, *ELSEWHERE, "nvrx-handler", "nvrx-verdict"} == set(THREAD_NAMES)


@pytest.mark.parametrize("name", OF_LAUNCHERS)
def test_a_launcher_ends_with_its_thread(launcher: Start, name: str) -> None:
    options = ("waits", *rendezvous_options(), "--nnodes", "2")
    started = time.monotonic()
    first = launcher(*options, launcher=AT_FAILPOINTS, RANK="0", **{failpoints.SCHEDULE: schedule(name)})
    code, log = first.finish(ENDS_WITHIN)
    assert code == OF_LAUNCHERS[name], log
    assert f"the thread {name} has failed: " in log
    assert "Traceback" not in log
    assert time.monotonic() - started < ENDS_WITHIN


@pytest.mark.parametrize("name", ["nvrx-node", "nvrx-decisions", "nvrx-coordinator", "nvrx-inbox"])
def test_a_job_of_two_nodes_ends_with_a_thread_that_fails_while_workers_run(
    ordered: Nodes, tmp_path: Path, name: str
) -> None:
    """The launcher whose thread fails runs the coordinator, and hosts the rendezvous."""
    os.mkfifo(pipe := tmp_path / "fails")
    variables = {"NVRX_TEST_FAILS": f"{pipe}:{name}"}
    first, second = ordered(2, "waits", "--nnodes", "2", launcher=AT_FAILPOINTS, variables=[variables, {}])
    for job in (first, second):
        job.read(2, "start")
    with pipe.open("w"):
        pass
    ends = [job.finish(ENDS_WITHIN) for job in (first, second)]
    assert [code for code, _ in ends] == [75, 75], ends
    assert f"the thread {name} has failed: " in ends[0][1]
    assert "Traceback" not in ends[0][1] + ends[1][1]


def test_a_launcher_ends_with_the_thread_of_a_handler(launcher: Start, tmp_path: Path) -> None:
    options = ("--nnodes", "1", "--rdzv-backend", "own", "--rdzv-endpoint", f"127.0.0.1:{free_ports()}")
    path = path_with_handler(tmp_path)
    variables = {failpoints.SCHEDULE: schedule("nvrx-handler"), "RANK": "0", "PYTHONPATH": path}
    code, log = launcher("waits", *options, launcher=AT_FAILPOINTS, **variables).finish(ENDS_WITHIN)
    assert code == 75, log
    assert "the thread nvrx-handler has failed: " in log


def test_a_job_goes_on_without_the_verdict_of_a_cycle(launcher: Start) -> None:
    variables = {failpoints.SCHEDULE: schedule("nvrx-verdict"), "RANK": "0"}
    code, log = launcher("killed", "--max-restarts", "1", launcher=AT_FAILPOINTS, **variables).finish()
    assert code == 0, log
    assert "there is no verdict of cycle 0: the thread nvrx-verdict has failed: " in log
    assert "verdict of cycle 0: operator_kill" not in log


@pytest.mark.parametrize("name", ELSEWHERE)
def test_whoever_uses_a_thread_hears_of_its_end(name: str, tmp_path: Path) -> None:
    code, program = ELSEWHERE[name]
    text = PRELUDE.format(schedule=schedule(name)) + program.replace("{endpoint!r}", repr(f"127.0.0.1:{free_ports()}"))
    done = subprocess.run(
        [sys.executable, "-c", text], env=ENVIRONMENT | {"NVRX_RUNTIME_DIR": str(tmp_path)}, cwd=WORKERS,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=ENDS_WITHIN,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert f"the thread {name}{'-3' if name == 'nvrx-watchdog' else ''} has failed: " in done.stderr
