"""A launcher waits before a restart until the memory of the node's GPUs is free, as a fake NVML has it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvrx_launcher.gpu_memory import _visible

from tests.harness.health.daemon import PARTS
from tests.harness.process.host import eventually
from tests.harness.process.launch import Launch, Start, rendezvous_options

WITH_DRIVER = 'mount -t tmpfs none /proc/driver; mkdir /proc/driver/nvidia; exec "$@"'
DRIVER = ("unshare", "--mount", "sh", "-c", WITH_DRIVER, "sh")
"""Runs a command on a node that has an NVIDIA driver."""
TOTAL = 80000


class Gpus:
    """The GPUs of a node, and how often their memory was read."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "nvml.json"

    def have(self, *memory: Any, **more: Any) -> None:
        """Set what is in use, in MB, or what else NVML says."""
        gpus = [{"action": 0, "memory": each if isinstance(each, str) else [each, TOTAL]} for each in memory]
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"gpus": gpus, **more}))
        new.rename(self.file)


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    """Two GPUs that nobody uses."""
    found = Gpus(tmp_path)
    found.have(3, 3)
    return found


@pytest.fixture
def start(launcher: Start, gpus: Gpus) -> Callable[..., Launch]:
    """Starts a launcher whose last rank is killed as soon as it may be, once."""
    path = os.pathsep.join([str(PARTS / "nvml"), os.environ.get("PYTHONPATH", "")])

    def start(*options: str, **more: Any) -> Launch:
        more = {"host": DRIVER, "PYTHONPATH": path, "NVRX_TEST_NVML": str(gpus.file), **more}
        return launcher("killed_then_gated", "--max-restarts", "1", "--ft-warm-workers", "off", *options, **more)

    return start


def end(job: Launch) -> str:
    """Let the job end, and return its log."""
    (job.folder / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    return log


def test_a_restart_waits_until_the_memory_is_free(start: Callable[..., Launch], gpus: Gpus, tmp_path: Path) -> None:
    job = start()
    job.read(2, "start")
    gpus.have(3, 40000)
    (tmp_path / "kill").touch()
    job.await_log("the restart waits for the memory of the GPUs: GPU 0 (0000:10:00.0) 3 of 80000 MB, GPU 1 (0000:11")
    assert {each["cycle"] for each in job.events} == {0}
    gpus.have(3, 200)
    job.read(2, "start", cycle=1)
    assert "GPU 1 (0000:11:00.0) 40000 MB, now 200 of 80000 MB" in end(job)


def test_memory_that_is_not_freed_ends_no_job(start: Callable[..., Launch], gpus: Gpus, tmp_path: Path) -> None:
    job = start("--ft-gpu-memory-reclaim-timeout", "4", "--ft-gpu-memory-tolerance-mb", "100")
    job.read(2, "start")
    gpus.have(3, 40000)
    (tmp_path / "kill").touch()
    job.read(2, "start", cycle=1)
    log = end(job)
    (line,) = [line for line in log.splitlines() if "GPU memory is in use, and the node restarts all the same" in line]
    assert "ERROR" in line
    assert "GPU 1 (0000:11:00.0) 40000 of 80000 MB (100 MB may be)" in line


def test_gpus_that_the_workers_do_not_see_are_left_alone(
    start: Callable[..., Launch], gpus: Gpus, tmp_path: Path
) -> None:
    gpus.have(3, 3, 3)
    job = start(CUDA_VISIBLE_DEVICES="2,0")
    job.read(2, "start")
    gpus.have(7, 40000, 8)
    (tmp_path / "kill").touch()
    job.read(2, "start", cycle=1)
    assert "GPU 0 (0000:10:00.0) 7 of 80000 MB, GPU 2 (0000:12:00.0) 8 of 80000 MB" in end(job)


@pytest.mark.parametrize(
    ("given", "seen"), [(None, "01"), ("", ""), ("-1,0", ""), ("3, 1", "31"), ("GPU-a,GPU-b,1", "GPU-aGPU-b")]
)
def test_the_gpus_are_those_that_the_workers_see(given: str | None, seen: str) -> None:
    assert "".join(_visible({} if given is None else {"CUDA_VISIBLE_DEVICES": given}, 2)) == seen


@pytest.mark.parametrize(
    ("memory", "more", "text"),
    [
        (("hangs", "hangs"), {}, "the driver has not answered within 3 s"),
        ((3, 3), {"error": 12}, "NVML cannot be used: error 12"),
    ],
    ids=["a call that never returns", "no NVML"],
)
def test_without_a_reading_the_job_restarts_and_says_so_once(
    start: Callable[..., Launch], gpus: Gpus, tmp_path: Path, memory: Any, more: Any, text: str
) -> None:
    gpus.have(*memory, **more)
    job = start("--ft-gpu-memory-reclaim-timeout", "3", "--ft-enable-gpu-healthcheck", "false")
    job.read(2, "start")
    (tmp_path / "kill").touch()
    job.read(2, "start", cycle=1)
    log = end(job)
    assert log.count("free GPU memory is not awaited before a restart") == 1, log
    assert text in log


def test_without_a_driver_it_is_said_if_the_options_ask_for_it(launcher: Start, tmp_path: Path) -> None:
    told = "free GPU memory is not awaited before a restart: this node has no NVIDIA driver"
    (tmp_path / "kill").touch()
    for options, count in (((), 0), (("--ft-gpu-memory-tolerance-mb", "1"), 1)):
        job = launcher("killed_then_gated", "--max-restarts", "1", *options)
        job.read(2, "start", cycle=1)
        log = end(job)
        assert log.count(told) == count, log
        (tmp_path / "gate").unlink()


@pytest.mark.nightly
def test_a_node_that_waits_is_not_given_up_by_the_others(
    start: Callable[..., Launch], launcher: Start, gpus: Gpus, tmp_path: Path
) -> None:
    """It has told them how long it may take; a spare that is there does not take its place."""
    options = (*rendezvous_options(), "--nnodes", "2:3", "--workers-stop-timeout", "0", "--workers-kill-timeout", "0")
    first = launcher("killed_then_gated", "--max-restarts", "1", *options)
    first.await_log("host the rendezvous")
    waits = start(*options)
    for job in (first, waits):
        job.read(2, "start")
    spare = launcher("killed_then_gated", "--max-restarts", "1", *options)
    spare.await_log("spare")
    gpus.have(3, 40000)
    (tmp_path / "kill").touch()
    waits.await_log("the restart waits for the memory of the GPUs")
    assert not eventually(lambda: spare.process.poll() is not None, 12.0)  # longer than it may take without GPUs
    gpus.have(3, 3)
    waits.read(2, "start", cycle=1)
    (tmp_path / "gate").touch()
    for job in (first, waits, spare):
        code, log = job.finish()
        assert code == 0, log
        assert "has not stopped" not in log
