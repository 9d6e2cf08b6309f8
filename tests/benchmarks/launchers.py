"""Launchers, beside torchrun and NVRx 0.4.1's in one run: restart after a killed worker, start, and end.

    python tests/benchmarks/launchers.py [--peer PYTHON] [--reps N]

The workers import no torch, but in the rows of P9: there they import it and join a gloo group, and one is killed when
standby workers, if the launcher has them, are ready. The columns take turns.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from launch import become_subreaper, clear_away
from report import machine_lines, shown_values

WORKER = """\
import os, signal, sys, time
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece: the workers share a pipe
say(os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], time.monotonic())
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(1.5 if os.environ["RANK"] == "1" else 60)
    say("killed", time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.5)
say("end", time.monotonic())
"""
TRAINS = """\
import os, signal, time
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
cycle, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
say(cycle, rank, time.monotonic())
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
say("joined", cycle, time.monotonic())
if cycle == "0":
    time.sleep(15 if rank == "1" else 60)
    say("killed", time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)
say("end", time.monotonic())
os._exit(0)
"""
LIMIT = 30.0
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # without it torch 2.13 often fails to restart
ROWS = (
    ("P9b", "start to first worker's first line, one node", 1, "start"),
    ("P8", "worker killed to first line of its successor, one node", 1, "restart"),
    ("P9b", "last worker's end to launcher's exit, one node", 1, "exit"),
    ("P9b", "start to first worker's first line, two nodes", 2, "start"),
    ("P8", "worker killed to first line of the last successor, two nodes", 2, "restart"),
    ("P9b", "last worker's end to launchers' exit, two nodes", 2, "exit"),
    ("P9", "worker killed to first line of its successor, which imports torch and joins gloo, one node", 0, "restart"),
    ("P9", "the same to the end of its first all_reduce", 0, "joined"),
)
TORCH = 0
"""Stands for the number of nodes in the rows of P9."""


def columns(peer: str | None) -> Iterator[tuple[str, list[str]]]:
    """Yields name and command."""
    bin_ = pathlib.Path(sys.executable).parent
    yield "ft_launcher", [sys.executable, "-m", "nvrx_launcher"]
    yield "ft_launcher, no standby", [sys.executable, "-m", "nvrx_launcher", "--ft-warm-workers", "off"]
    yield "torchrun", [str(bin_ / "torchrun")]
    if peer:
        command = str(pathlib.Path(peer).parent / "ft_launcher")
        yield "peer, defaults", [command, "--ignore-missing-fault-tol-cfg"]
        yield "peer, fastest", [command, "--ignore-missing-fault-tol-cfg", "--monitor-interval", "0.01"]


def run(command: list[str], nodes: int, script: str) -> dict[str, float]:
    """Runs a job whose rank 1 is killed once; returns the seconds of each phase, none where it did not end well."""
    port = random.randrange(12_000, 31_000)
    options = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--nnodes", str(nodes)]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        jobs = [
            subprocess.Popen(
                [*command, *options, "--nproc-per-node", "2", "--max-restarts", "3", script],
                stdout=output, stderr=subprocess.DEVNULL, env=os.environ | ENVIRONMENT,
            )
            for _ in range(nodes)
        ]  # fmt: skip
        codes = [ended_within(job, began + LIMIT - time.monotonic()) for job in jobs]
        ended = time.monotonic()
        clear_away()
        output.seek(0)
        lines = [line.split() for line in output]
    if any(codes):
        return {}
    first = [float(line[2]) for line in lines if line[0] == "0"]
    second = [float(line[2]) for line in lines if line[0].isdigit() and line[0] != "0"]
    killed = next(float(line[1]) for line in lines if line[0] == "killed")
    end = max(float(line[1]) for line in lines if line[0] == "end")
    joined = [float(line[2]) for line in lines if line[0] == "joined" and line[1] != "0"]
    restart = max(second) if nodes > 1 else min(second)
    found = {"start": min(first) - began, "restart": restart - killed, "exit": ended - end}
    return found | ({"joined": max(joined) - killed} if joined else {})


def ended_within(job: subprocess.Popen[bytes], seconds: float) -> int:
    """Returns the exit code of a launcher, which is killed at its bound."""
    try:
        return job.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        job.kill()
        return job.wait()


def main() -> None:
    become_subreaper()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter of an environment with nvidia-resiliency-ext")
    parser.add_argument("--reps", type=int, default=5, help="samples of each figure (default: 5)")
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[1, 2, TORCH], help="1, 2, or 0 for the workers of P9 (default: all)"
    )
    options = parser.parse_args()
    results: dict[tuple[str, int, str], list[float]] = {}
    failed: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        script, trains = pathlib.Path(folder) / "worker.py", pathlib.Path(folder) / "trains.py"
        script.write_text(WORKER)
        trains.write_text(TRAINS)
        for _ in range(options.reps):
            for nodes in options.nodes:
                for name, command in columns(options.peer):
                    found = run(command, nodes or 1, str(script if nodes else trains))
                    failed[name] = failed.get(name, 0) + (not found)
                    print(
                        f"{name}, {nodes} nodes:",
                        *(f"{key} {value:.3f} s" for key, value in found.items()),
                        file=sys.stderr,
                    )
                    for key, value in found.items():
                        results.setdefault((name, nodes, key), []).append(value)
    print("\n".join(machine_lines(options.peer)))
    names = [name for name, _ in columns(options.peer)]
    print("\n| # | what | " + " | ".join(names) + " |\n|---|---|" + "---|" * len(names))
    for key, text, nodes, phase in ROWS:
        print(
            f"| {key} | {text} | "
            + " | ".join(shown_values(results.get((name, nodes, phase), []), "s") for name in names)
            + " |"
        )
    print("jobs that did not end well: " + ", ".join(f"{name} {count}" for name, count in failed.items()))


if __name__ == "__main__":
    main()
