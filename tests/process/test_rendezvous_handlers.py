"""Our rendezvous under torch elastic's own interface, over TCP and over a real etcd; and under torchrun itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.process.etcd import etcd_in
from tests.harness.process.host import eventually, free_ports
from tests.harness.process.job import Template
from tests.harness.process.launch import RUN_SCRIPT, ForkedProcess

WORKERS = Path(__file__).parent.parent / "harness" / "process" / "workers"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
CASES = 5
TORCHRUN = """\
from nvrx_launcher.rendezvous.registration import register
from torch.distributed.run import main
register()
main()
"""


def run(template: Template, backend: str, endpoint: str) -> list[str]:
    """Return the cases that hold for a backend."""
    script = [str(WORKERS / "rendezvous_handlers.py"), backend, endpoint]
    with ForkedProcess(template, RUN_SCRIPT, script, ENVIRONMENT) as process:
        try:
            out, errors = process.communicate(timeout=150)
        finally:
            process.kill()
    assert process.returncode == 0, out + errors
    return out.split()


def test_it_keeps_what_torch_promises_over_tcp(template: Template) -> None:
    assert len(run(template, "nvrx-c10d", f"127.0.0.1:{free_ports(CASES)}")) == CASES


def test_it_keeps_what_torch_promises_over_etcd(template: Template, tmp_path: Path) -> None:
    with etcd_in(tmp_path) as etcd:
        assert len(run(template, "nvrx-etcd-v2", etcd.endpoint)) == CASES


def test_agents_of_torchrun_restart_by_it(tmp_path: Path) -> None:
    """Rank 1 fails once, on one of two agents; the other one is told, and both are done in the next round."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        f"failed, started = {str(tmp_path / 'failed')!r}, {str(tmp_path / 'started')!r}\n"
        "if not os.path.exists(failed):\n"
        "    if os.environ['RANK'] == '0':\n"
        "        open(started, 'w').close(); time.sleep(60)\n"
        "    while not os.path.exists(started):\n"
        "        time.sleep(0.02)\n"
        "    open(failed, 'w').close(); sys.exit(3)\n"
        "print('done', os.environ['RANK'], os.environ['WORLD_SIZE'], flush=True)\n"
    )
    options = ["--nnodes", "2", "--max-restarts", "2", "--rdzv-id", "job", "--rdzv-backend", "nvrx-c10d"]
    command = [sys.executable, "-c", TORCHRUN, *options, "--rdzv-endpoint", f"127.0.0.1:{free_ports()}", str(script)]
    agents = [
        subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        ends = [(agent.communicate(timeout=100), agent.returncode) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [code for _, code in ends] == [0, 0], ends
    assert sorted(line for (out, _), _ in ends for line in out.splitlines()) == ["done 0 2", "done 1 2"]


def test_agents_of_torchrun_survive_an_etcd_that_stands_still(tmp_path: Path) -> None:
    """For longer than their leases: each joins again, once, and both start their workers in the next cycle."""
    gate, starts, script = tmp_path / "gate", tmp_path / "starts", tmp_path / "script.py"
    starts.mkdir()
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(starts)!r}, str(os.getpid())).touch()\n"
        f"while not os.path.exists({str(gate)!r}):\n"
        "    time.sleep(0.05)\n"
        "print('done', os.environ['RANK'], os.environ['WORLD_SIZE'], flush=True)\n"
    )
    with etcd_in(tmp_path / "etcd") as etcd:
        options = ["--nnodes", "2", "--max-restarts", "0", "--rdzv-id", "job", "--rdzv-backend", "nvrx-etcd-v2"]
        command = [sys.executable, "-c", TORCHRUN, *options, "--monitor-interval", "0.1"]
        command += ["--rdzv-endpoint", etcd.endpoint, str(script)]
        agents = [
            subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        try:
            assert eventually(lambda: len(list(starts.iterdir())) == 2, 60.0)
            etcd.kill(signal.SIGSTOP)
            time.sleep(7.0)
            etcd.kill(signal.SIGCONT)
            assert eventually(lambda: len(list(starts.iterdir())) == 4, 60.0)
            gate.touch()
            ends = [(agent.communicate(timeout=60), agent.returncode) for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
    assert [code for _, code in ends] == [0, 0], ends
    assert sorted(line for (out, _), _ in ends for line in out.splitlines()) == ["done 0 2", "done 1 2"]
    assert len(list(starts.iterdir())) == 4, "there is one further cycle, and not one for each number"


@pytest.mark.parametrize("name", ["nvrx-c10d", "nvrx-etcd-v2"])
def test_torch_finds_it_in_an_installed_package(name: str) -> None:
    """The entry point names what makes a handler."""
    import importlib
    import tomllib

    project = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())["project"]
    module, _, attribute = project["entry-points"]["torchrun.handlers"][name].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute)())
