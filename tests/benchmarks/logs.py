"""Per-cycle logs through the log server, beside a plain file: lines a second, CPU of a node, loss over an outage.

    python tests/benchmarks/logs.py [--nodes N] [--outage SECONDS] [--rate LINES]

Each node is a process that sends, fed by this one. `flood` writes as fast as the node takes it, `paced` --rate lines
a second; `outage` kills the server meanwhile, for --outage seconds. CPU is of the processes of a
node and of the server, in percent of a core.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from nvrx_core.logs.rank_lines import RankLines
from tests.harness.process.host import free_ports
from tests.harness.process.log_service import Node, Server

TICK = os.sysconf("SC_CLK_TCK")
READ = 64 << 10
"""Bytes that a launcher reads of a worker's pipe at a time."""


def cpu(pid: int) -> float:
    """CPU seconds of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def text(count: int, first: int) -> bytes:
    """Lines as a training prints them, 100 bytes each."""
    line = b"iteration %9d | loss 1.234567E+00 | grad norm 0.123 | %41d\n"
    return b"".join(line % (number, number) for number in range(first, first + count))


class Job:
    def __init__(self, folder: pathlib.Path, nodes: int) -> None:
        self.folder, self.file = folder, folder / "logs" / "train_cycle0.log"
        self.file.parent.mkdir()
        self.listen = f"127.0.0.1:{free_ports(1)}"
        self.server = self.start_server()
        self.nodes = [Node(folder, self.listen, f"node{number}", within=60.0) for number in range(nodes)]
        self.lines = [RankLines(number, nodes) for number in range(nodes)]
        self.count = [0] * nodes
        for number in range(nodes):
            self.put(number, 1)
        self.await_lines(nodes)

    def start_server(self) -> Server:
        return Server(self.folder, "--root", str(self.file.parent), "--nodes", "0", listen=self.listen, within=60.0)

    def put(self, node: int, count: int) -> None:
        """Give a node lines as its launcher does: in reads of a pipe."""
        data = text(count, self.count[node])
        self.count[node] += count
        for at in range(0, len(data), READ):
            found = self.lines[node].feed(data[at : at + READ], now=time.monotonic())
            if found:
                self.nodes[node].put(self.file, found)

    def written(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def await_lines(self, count: int) -> None:
        size = count * (len(text(1, 0)) + len(self.lines[0].feed(b"\n", now=0.0)) - 1)
        while self.written() < size:
            time.sleep(0.01)

    def cpus(self) -> tuple[float, float]:
        return sum(cpu(node.process.pid) for node in self.nodes) / len(self.nodes), cpu(self.server.process.pid)

    def end(self) -> tuple[int, int]:
        """Returns how many lines are missing, and how many are there twice."""
        for node in self.nodes:
            node.end()
        self.server.end()
        found = Counter(self.file.read_bytes().splitlines())
        wanted = sum(self.count)
        return wanted - len(found), sum(found.values()) - len(found)


def flood(nodes: int, lines: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(pathlib.Path(folder), nodes)
        before, began = job.cpus(), time.monotonic()
        for _ in range(lines // 10_000):
            for node in range(nodes):
                job.put(node, 10_000)
        job.await_lines(sum(job.count))
        took, after = time.monotonic() - began, job.cpus()
        missing, twice = job.end()
    node, server = ((after[each] - before[each]) / (nodes * lines if each else lines) * 1e6 for each in (0, 1))
    return (
        f"{'flood':16} {nodes:3d} nodes {nodes * lines / took:10,.0f} lines/s   CPU us/line: node {node:.2f}, server "
        f"{server:.2f}   {missing} lines missing, {twice} twice"
    )


def paced(nodes: int, rate: int, seconds: float, outage: float) -> str:
    """Lines at a rate; the server is away from a third of the time on, for `outage` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(pathlib.Path(folder), nodes)
        before, began = job.cpus(), time.monotonic()
        kill_at = began + seconds / 3 if outage else math.inf
        back_at = kill_at + outage
        while (now := time.monotonic()) < began + seconds + outage:
            if now >= kill_at:
                job.server.kill()
                kill_at = math.inf
            if now >= back_at:
                job.server, back_at = job.start_server(), math.inf
            for node in range(nodes):
                job.put(node, rate // 10)
            time.sleep(max(0.0, 0.1 - (time.monotonic() - now)))
        took, after = time.monotonic() - began, job.cpus()
        missing, twice = job.end()
    node, server = ((after[each] - before[each]) / took * 100 for each in (0, 1))
    what = f"outage of {outage:.0f} s" if outage else "paced"
    shown = "" if outage else f", server {server:.1f} %"
    return (
        f"{what:16} {nodes:3d} nodes {sum(job.count) / nodes / took:8,.0f} lines/s each, {took:.0f} s   CPU: node "
        f"{node:.1f} %{shown}   {missing} lines missing, {twice} twice"
    )


def plain(lines: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        fd, rank_lines = os.open(f"{folder}/train.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT), RankLines(0, 1)
        data = [text(10_000, at) for at in range(0, lines, 10_000)]
        began, before = time.monotonic(), time.process_time()
        for each in data:
            for at in range(0, len(each), READ):
                os.write(fd, rank_lines.feed(each[at : at + READ], now=0.0))
        took, used = time.monotonic() - began, time.process_time() - before
        os.close(fd)
    return f"plain file       {lines / took:10,.0f} lines/s   CPU us/line: {used / lines * 1e6:.2f} (rank and write)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--outage", type=float, default=30.0)
    given = parser.parse_args()
    print(subprocess.run(["uptime"], capture_output=True, text=True, check=True, timeout=5).stdout.strip())
    print(plain(given.lines))
    print(flood(1, given.lines))
    print(flood(given.nodes, given.lines))
    print(paced(given.nodes, given.rate, 20.0, 0.0))
    print(paced(given.nodes, given.rate, 15.0, given.outage))


if __name__ == "__main__":
    main()
