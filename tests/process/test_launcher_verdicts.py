"""The verdict of a cycle, for each kind of fault: one job, in whose cycles real faults happen to real processes."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.process.job import Template
from tests.harness.process.launch import Launch, Nodes, Start, events_of, rendezvous_options

UNKNOWN = "unknown cause"


class Fault(NamedTuple):
    """A fault of `workers.launcher_named`; with `+`, while the other rank waits in a collective.

    Attributes:
        name: its name.
        failure: what the line calls it.
        action: what it says to do.
        error: what the line of the log has that the verdict names; "" where no log has one.
    """

    name: str
    failure: str
    action: str
    error: str


FAULTS = (
    Fault("user_exception+", "user_exception", "restart", "LookupError: sample 7 has no label"),
    Fault("exit_3", UNKNOWN, "restart", ""),
    Fault("segmentation_fault", "segmentation_fault", "restart", ""),
    Fault("killed+", "operator_kill", "restart", ""),
    Fault("aborted", UNKNOWN, "restart", ""),
    Fault("missing_module", "missing_module", "stop", "ModuleNotFoundError: No module named 'no_such_kernels'"),
    Fault("disk_full+", "disk_full", "stop", "OSError: [Errno 28] No space left on device"),
    Fault("assertion", "assertion", "stop", "AssertionError: batches differ: {2, 3}"),
    Fault("nan_loss+", "nan_loss", "stop", "RuntimeError: loss is nan in step 3"),
    Fault("data_loader+", "data_loader", "restart", "RuntimeError: DataLoader worker (pid"),
    Fault("port_in_use", "port_in_use", "restart", "OSError: [Errno 98] Address already in use"),
    Fault("cuda_out_of_memory+", "cuda_out_of_memory", "stop", "torch.OutOfMemoryError: CUDA out of memory."),
)


@pytest.fixture(scope="module")
def verdicts(template: Template, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The verdicts of the job's cycles, by their numbers; rank 0 and rank 1 fail in turn."""
    folder = tmp_path_factory.mktemp("named")
    faults = ",".join(f"{fault.name}:{cycle % 2}" for cycle, fault in enumerate(FAULTS))
    options = ("--max-restarts", str(len(FAULTS)), "--ft-restart-backoff", "none", "--ft-warm-workers", "off")
    files = ("--log-dir", str(folder / "logs"), "-r", "3")
    job = Launch(folder, faults, *options, *files, worker="launcher_named.py", template=template)
    try:
        code, log = job.finish(within=300.0)
    finally:
        job.close()
    assert code == 0, log
    said = re.findall(r"verdict of cycle (\d+): (.*)$", log, re.MULTILINE)
    assert sorted(int(cycle) for cycle, _ in said) == list(range(len(FAULTS))), log  # a thread makes each
    return {int(cycle): text for cycle, text in said}


@pytest.mark.parametrize("cycle", range(len(FAULTS)), ids=[each.name for each in FAULTS])
def test_the_line_of_the_launcher_names_the_fault(verdicts: dict[int, str], cycle: int) -> None:
    fault, found = FAULTS[cycle], verdicts[cycle]
    match = re.fullmatch(
        r"(?P<failure>[\w ]+), rank (?P<rank>\d) on \S+; action (?P<action>\w+), confidence (?P<confidence>0\.\d\d)"
        r"(?:; see (?P<file>/\S+):(?P<line>\d+))?",
        found,
    )
    assert match, found
    assert (match["failure"], int(match["rank"]), match["action"]) == (fault.failure, cycle % 2, fault.action)
    assert (match["file"] is None) == (not fault.error), found
    if fault.error:
        assert fault.error in Path(match["file"]).read_text().splitlines()[int(match["line"]) - 1]
        assert f"attempt_{cycle}/{cycle % 2}/" in match["file"]


@pytest.mark.parametrize(
    ("signum", "left", "failure"),
    [
        (signal.SIGTERM, None, "operator_kill"),
        (signal.SIGINT, 7200, "operator_kill"),
        (signal.SIGTERM, 20, "time_limit"),
    ],
)
def test_a_job_that_a_signal_ends_has_a_verdict(
    launcher: Start, tmp_path: Path, signum: int, left: int | None, failure: str
) -> None:
    limit = {} if left is None else {"SLURM_JOB_END_TIME": str(int(time.time()) + left)}
    job = launcher("waits", **limit)
    job.read(2, "start")
    job.process.send_signal(signum)
    code, log = job.finish()
    assert code == 128 + signum, log
    (verdict,) = events_of(tmp_path, "cycle_verdict")
    action = "restart" if failure == "time_limit" else "stop"
    assert (verdict["iteration"], verdict["verdict"]["class"], verdict["verdict"]["action"]) == (0, failure, action)
    assert len(re.findall(rf"verdict of cycle 0: {failure}, no rank named; action {action}, ", log)) == 1, log


def test_a_signal_to_all_processes_of_a_job_has_one_verdict_and_names_no_rank(nodes: Nodes, tmp_path: Path) -> None:
    """As of Slurm, which sends SIGTERM to workers and launchers alike; the order in which they notice it differs."""
    jobs = nodes(2, "waits", "--nnodes", "2")
    for job in jobs:
        job.read(2, "start")
    for pid in [pid for job in jobs for pid in job.pids()] + [job.process.pid for job in jobs]:
        os.kill(pid, signal.SIGTERM)
    ends = [job.finish() for job in jobs]
    assert all(code in (143, 75) for code, _ in ends), ends
    (verdict,) = (each["verdict"] for each in events_of(tmp_path, "cycle_verdict"))
    assert (verdict["class"], verdict["rank"]) == ("operator_kill", None), ends
    assert sum(log.count("verdict of cycle 0: ") for _, log in ends) == 1, ends


OF_HOST = "tests.harness.process.launcher_of_host"


def variables_of(folder: Path, count: int) -> list[dict[str, str]]:
    """Return the variables of launchers on hosts n0, n1, ..., with kernel logs in a folder."""
    return [{"NVRX_TEST_HOST": f"n{node}", "NVRX_TEST_KMSG": str(folder / f"kmsg{node}")} for node in range(count)]


def test_what_the_kernel_of_another_node_has_recorded_makes_the_verdict(ordered: Nodes, tmp_path: Path) -> None:
    logs = [tmp_path / f"kmsg{node}" for node in range(2)]
    old = "4,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, an earlier one\n"
    for log in logs:
        log.write_text(old)
    options = ("--nnodes", "2", "--max-restarts", "1")
    jobs = ordered(2, "killed_then_gated", *options, variables=variables_of(tmp_path, 2), launcher=OF_HOST)
    for job in jobs:
        job.read(2, "start")
    with logs[1].open("a") as file:
        file.write("4,2,2,-;link up\n4,3,3,-;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n")
    (tmp_path / "kill").touch()
    jobs[0].await_log("verdict of cycle 0: gpu_lost, node n1; action exclude_node, ")
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    (verdict,) = (each["verdict"] for each in events_of(tmp_path, "cycle_verdict"))
    assert verdict["node_to_exclude"] == "n1"
    assert "earlier" not in str(verdict["evidence"])


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_loss_of_the_launcher_with_the_coordinator_has_one_verdict(
    launcher: Start, store_endpoint: str, tmp_path: Path, signum: int
) -> None:
    variables = variables_of(tmp_path, 3)
    options = (*rendezvous_options(store_endpoint), "--nnodes", "2:3", "--max-restarts", "1")
    first = launcher("cut_off", *options, launcher=OF_HOST, **variables[0])
    first.await_log("this launcher runs the coordinator")
    others = [launcher("cut_off", *options, launcher=OF_HOST, **each) for each in variables[1:]]
    first.read(2, "start")
    first.process.send_signal(signum)
    for job in others:
        job.read(2, "start", 1)
    (tmp_path / "gate").touch()
    ends = [first.finish(), *(job.finish() for job in others)]
    assert [code for code, _ in ends[1:]] == [0, 0], ends
    verdicts = events_of(tmp_path, "cycle_verdict")
    lines = [line for _, log in ends for line in log.splitlines() if "verdict of cycle" in line]
    (verdict,) = (each["verdict"] for each in verdicts)
    assert (verdict["class"], verdict["host"]) == ("peer_lost" if signum == signal.SIGKILL else "operator_kill", "n0")
    assert len(lines) == 1, lines
    assert bool(re.search("verdict of cycle 0: ", ends[0][1])) == (signum == signal.SIGTERM)


def test_the_loss_of_the_launcher_that_hosts_the_store_has_one_verdict_of_the_others(
    ordered: Nodes, tmp_path: Path
) -> None:
    jobs = ordered(3, "waits", "--nnodes", "3", "--workers-stop-timeout", "0.5")
    for job in jobs:
        job.read(2, "start")
    jobs[0].process.kill()
    ends = [job.finish() for job in jobs[1:]]
    assert [code for code, _ in ends] == [75, 75], ends
    (verdict,) = (each["verdict"] for each in events_of(tmp_path, "cycle_verdict"))
    assert (verdict["class"], verdict["host"]) == ("peer_lost", None), ends
    assert "the rendezvous store is lost" in verdict["sentence"]
    assert sum(log.count("verdict of cycle 0: peer_lost, no rank named; action restart") for _, log in ends) == 1
