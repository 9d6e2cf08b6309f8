"""One job under chaos: its launchers on hosts of their own, their consoles and disks, and what is done to them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from nvrx_core.process.lifeline import open_pidfd
from tests.harness.process import host
from tests.harness.process.etcd import Etcd
from tests.harness.process.monitored import RUNTIME, environment_of
from tests.harness.process.netns import Network, network

from . import bounds
from .consoles import Console
from .processes import NODE, Process, census, of_kind
from .schedule import Blow, Shape

__all__ = ["ChaosJob", "Launched", "chaos_job"]

LEADS = "this launcher runs the coordinator"
PORT = 29_500
WORKER = Path(__file__).parents[1] / "workers" / "launcher_chaos.py"
DISKS = {"logs": "512k", "events": "256k", "run": "256k"}
"""The disks of a node, and how large they are."""
TURN = 0.05
FREEZER = Path("/sys/fs/cgroup/freezer")


class Launched:
    """A launcher that was started."""

    def __init__(self, node: int, process: subprocess.Popen[bytes], console: Console, stacks: Path) -> None:
        self.node, self.process, self.console, self.stacks = node, process, console, stacks
        self.signals = list[int]()
        """What it was sent."""
        self.was_stalled = False
        """Nobody read its console when it ended."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code."""
        return self.process.returncode


class ChaosJob:
    """A job.

    Args:
        shape: what runs.
        folder: for its files.
        hosts: one for each launcher, and one for a rendezvous outside.
        tag: the value of NVRX_TEST_TAG in the environment of all its processes.
    """

    def __init__(self, shape: Shape, folder: Path, hosts: Network, tag: str) -> None:
        self.shape, self.folder, self.hosts, self.tag = shape, folder, hosts, tag
        self.launched = list[Launched]()
        self.done = list[str]()
        """What was done to it, as it happened."""
        self.lost_nodes = set[int]()
        """Those of which all processes were killed at once."""
        self.started_at = time.monotonic()
        self.changed_at = time.monotonic()
        """When something was done to it for the last time, or was over."""
        self._undo = list[tuple[float, int, Callable[[], object]]]()
        self._consoles = list[Console]()
        self._outside: subprocess.Popen[bytes] | None = None
        self._etcd: Etcd | None = None
        self._frozen = 0
        (folder / "steps").mkdir(parents=True)

    @property
    def gate(self) -> Path:
        """The file that lets the workers end."""
        return self.folder / "gate"

    @property
    def running(self) -> list[Launched]:
        """The launchers that have not ended."""
        return [each for each in self.launched if each.is_running]

    def now(self) -> float:
        """Return seconds since the start."""
        return time.monotonic() - self.started_at

    def start(self) -> None:
        """Start the rendezvous and all launchers."""
        self._start_rendezvous()
        self.started_at = time.monotonic()
        for node in range(self.shape.launchers):
            self.launch(node)

    def launch(self, node: int) -> None:
        """Start a launcher on a host."""
        number = len(self.launched)
        console = Console(is_terminal=self.shape.console == "pty")
        self._consoles.append(console)
        stacks = self.folder / f"stacks-{number}"
        environment = environment_of(
            self.folder, NVRX_EVENTS_DIR=str(self.disk(node, "events")), NVRX_TEST_GATE=str(self.gate),
            NVRX_TEST_STEPS=str(self.folder / "steps"), NVRX_TEST_STACKS=str(stacks), OMP_NUM_THREADS="1",
            **{RUNTIME: str(self.disk(node, "run") / "r"), NODE: str(node), host.TAG: self.tag},
        )  # fmt: skip
        command = [*self.hosts.command(node), sys.executable, "-m", "tests.harness.process.chaos.launcher"]
        process = subprocess.Popen(
            [*command, *self.options(node)], env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=console.theirs, stderr=console.theirs,
        )  # fmt: skip
        console.launched()
        self.launched.append(Launched(node, process, console, stacks))

    def options(self, node: int) -> list[str]:
        """Return the launcher's arguments on a node."""
        shape = self.shape
        conf = {"join_timeout": bounds.JOIN, "read_timeout": bounds.READ, "close_timeout": bounds.CLOSE}
        given = {
            "--nproc-per-node": shape.workers, "--nnodes": shape.nodes, "--max-restarts": shape.restarts,
            "--rdzv-backend": "etcd-v2" if shape.backend == "etcd-v2" else "c10d", "--rdzv-id": "chaos",
            "--rdzv-endpoint": self._endpoint(), "--rdzv-conf": ",".join(f"{k}={v:g}" for k, v in conf.items()),
            "--restart-policy": shape.policy, "--workers-stop-timeout": bounds.STOP, "--term-timeout": bounds.TERM,
            "--workers-kill-timeout": bounds.KILL,
            "--ft-inprocess-grace": bounds.GRACE, "--ft-restart-backoff": "none",
            "--ft-rank-section-timeouts": f"step:{bounds.HANG:g}", "--ft-rank-heartbeat-timeout": bounds.HANG,
            "--ft-rank-out-of-section-timeout": bounds.HANG, "--ft-workload-check-interval": 1,
            "--ft-warm-workers": "on" if shape.standbys else "off",
            "--ft-warm-imports": "torch" if shape.worker == "wrapped" else "json",
            "--log-dir": self.disk(node, "logs"), "-t" if shape.teed else "-r": 3 if shape.teed else 0,
        }  # fmt: skip
        arguments = [str(each) for pair in given.items() for each in pair]
        return [*arguments, str(WORKER), shape.worker, *(["monitored"] if shape.monitored else [])]

    def disk(self, node: int, name: str) -> Path:
        """Return the folder that a disk of a node is mounted at."""
        return self.folder / f"{name[0]}{node}"

    def processes(self) -> list[Process]:
        """Return all its living processes."""
        workers = {each["pid"] for each in self.steps().values()}
        launchers = {each.process.pid for each in self.launched}
        return census(self.tag, host.TAG, workers=workers, launchers=launchers)

    def steps(self) -> dict[str, dict[str, Any]]:
        """Return how far all workers are that have ever run, by node, local rank and pid."""
        found = {}
        for path in (self.folder / "steps").iterdir():
            with suppress(ValueError):
                found[path.name] = json.loads(path.read_text())
        return found

    def restart_clock(self) -> None:
        """Count the time from now on."""
        self.started_at = time.monotonic()

    def turn(self, seconds: float) -> None:
        """Let time pass: read the consoles, and end the blows that are over."""
        end = time.monotonic() + seconds
        while True:
            self._undo_until(time.monotonic())
            consoles = [each for each in self._consoles if each.is_read]
            for console in select.select(consoles, [], [], max(0.0, min(TURN, end - time.monotonic())))[0]:
                if not console.read():
                    self._consoles.remove(console)
            for each in self.launched:
                each.was_stalled |= not each.console.is_read and not each.is_running
            if time.monotonic() >= end:
                return

    def strike(self, blow: Blow) -> None:
        """Carry a blow out; what lasts is ended by `turn`, or by `heal`."""
        hit = self._strike(blow)
        self.changed_at = time.monotonic()
        self.done.append(f"{self.now():5.1f} s: {blow.what} {blow.kind}: {hit or 'nothing there'}")

    @property
    def struck(self) -> set[int]:
        """The nodes that something is being done to; -1 for the rendezvous."""
        return {node for _, node, _ in self._undo}

    def heal(self) -> None:
        """End all blows that last."""
        self._undo_until(float("inf"))

    def close(self) -> None:
        """Kill what is left, and remove what was made for it."""
        self.heal()
        while left := self.processes():
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            time.sleep(TURN)
        for each in self.launched:
            each.process.wait()
            each.console.close()
        if self._outside is not None:
            self._outside.kill()
            self._outside.wait()
        if self._etcd is not None:
            self._etcd.kill()

    def _endpoint(self) -> str:
        outside = self.hosts.addresses[self.shape.launchers]
        if self._etcd is not None:
            return self._etcd.endpoint
        return f"{outside if self.shape.backend == 'outside' else self.hosts.addresses[0]}:{PORT}"

    def _start_rendezvous(self) -> None:
        where = self.shape.launchers
        if self.shape.backend == "etcd-v2":
            command, address = self.hosts.command(where), self.hosts.addresses[where]
            self._etcd = Etcd(self.folder / "etcd0", address=address, starter=command)
            self._etcd.start()
        elif self.shape.backend == "outside":
            program = [sys.executable, "-m", "nvrx_core.store", "--host", self.hosts.addresses[where]]
            self._outside = subprocess.Popen(
                [*self.hosts.command(where), *program, "--port", str(PORT)],
                env=environment_of(self.folder, NVRX_TEST_OUTSIDE="1"), stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            assert self._outside.stdout is not None
            with self._outside.stdout as said:
                said.readline()

    def _after(self, seconds: float, node: int, undo: Callable[[], object]) -> None:
        self._undo.append((time.monotonic() + seconds, node, undo))

    def _undo_until(self, now: float) -> None:
        due = sorted((each for each in self._undo if each[0] <= now), key=lambda each: each[0])
        self._undo = [each for each in self._undo if each[0] > now]
        for _, _, undo in due:
            undo()
            self.changed_at = time.monotonic()

    def _strike(self, blow: Blow) -> str:
        if blow.kind == "rendezvous":
            return self._strike_rendezvous(blow)
        if blow.kind == "node":
            return self._strike_node(blow)
        processes = self.processes()
        pids = self._leader() if blow.kind == "coordinator" else []
        pids = pids or of_kind(processes, blow.kind.replace("coordinator", "launcher"), blow.node, blow.index)
        for each in processes:
            if each.pid in pids:
                self._strike_process(each.pid, each.node, blow)
        return f"pid {pids}" if pids else ""

    def _leader(self) -> list[int]:
        return [each.process.pid for each in self.running if LEADS in each.console.text][-1:]

    def _strike_process(self, pid: int, node: int, blow: Blow) -> None:
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM, "int": signal.SIGINT}
        if blow.what == "freeze":
            self._freeze([pid], node, blow.seconds)
            return
        for each in self.launched:
            if each.process.pid == pid and blow.what != "stop":
                each.signals.append(number[blow.what])
        with suppress(ProcessLookupError):
            pidfd = open_pidfd(pid)
            signal.pidfd_send_signal(pidfd, number[blow.what])
            self._after(blow.seconds, node, lambda: self._continue(pidfd))

    def _continue(self, pidfd: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        os.close(pidfd)

    def _freeze(self, pids: list[int], node: int, seconds: float) -> None:
        folder = FREEZER / f"{self.tag}-{self._frozen}"
        self._frozen += 1
        folder.mkdir()
        for pid in pids:
            with suppress(OSError):
                (folder / "cgroup.procs").write_text(str(pid))
        (folder / "freezer.state").write_text("FROZEN")
        self._after(seconds, node, lambda: self._thaw(folder))

    def _thaw(self, folder: Path) -> None:
        (folder / "freezer.state").write_text("THAWED")
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (FREEZER / "cgroup.procs").write_text(pid)
        for _ in range(100):  # what was killed meanwhile leaves now
            with suppress(OSError):
                folder.rmdir()
                return
            time.sleep(0.02)

    def _strike_rendezvous(self, blow: Blow) -> str:
        pid = self._etcd.pid if self._etcd is not None else self._outside.pid if self._outside is not None else None
        if pid is None or (self._outside is not None and self._outside.poll() is not None):
            return ""
        if blow.what == "freeze":
            self._freeze([pid], -1, blow.seconds)
        elif blow.what == "stop":
            os.kill(pid, signal.SIGSTOP)
            self._after(blow.seconds, -1, lambda: self._continue_rendezvous(pid))
        elif self._etcd is not None:
            if not host.alive(pid) or any(_is_frozen(folder, pid) for folder in FREEZER.glob(f"{self.tag}-*")):
                return ""
            self._etcd.kill()
            if blow.what == "empty":
                self._etcd.directory = self.folder / f"anew-{len(self.done)}" / self._etcd.directory.name
            self._after(blow.seconds, -1, self._etcd.start)
        elif self._outside is not None:
            self._outside.kill()
            self._outside.wait()
        return f"pid {pid}"

    def _continue_rendezvous(self, pid: int) -> None:
        own = self._etcd.pid if self._etcd is not None else self._outside.pid if self._outside is not None else None
        if own == pid and host.alive(pid):
            os.kill(pid, signal.SIGCONT)

    def _strike_node(self, blow: Blow) -> str:
        match blow.what:
            case "stall":
                self._stall(blow)
            case "kill_node" | "freeze_node":
                pids = [each.pid for each in self.processes() if each.node == blow.node]
                if blow.what == "freeze_node":
                    self._freeze(pids, blow.node, blow.seconds)
                else:
                    self._kill_all(blow.node, pids)
                return f"pids {pids}"
            case "start":
                return self._start_again(blow.node)
            case what if what.startswith("fill_"):
                disk = self.disk(blow.node, what.removeprefix("fill_"))
                _fill(disk)
                self._after(blow.seconds, blow.node, lambda: (disk / "full").unlink(missing_ok=True))
            case _:
                self._strike_link(blow)
        return f"node {blow.node}"

    def _strike_link(self, blow: Blow) -> None:
        node, hosts = blow.node, self.hosts
        if blow.what == "cut":
            hosts.cut(node)
        elif blow.what == "slow":
            hosts.slow(node)
        else:
            hosts.cut_one_way(node, outgoing=blow.what == "cut_out")
        self._after(blow.seconds, node, lambda: hosts.heal(node) if blow.what == "cut" else hosts.restore(node))

    def _stall(self, blow: Blow) -> None:
        for each in self.running:
            if each.node == blow.node:
                each.console.stall()
                self._after(blow.seconds, blow.node, each.console.go_on)

    def _start_again(self, node: int) -> str:
        """Start a launcher where one has ended, on this node if possible."""
        ended = {each.node for each in self.launched} - {each.node for each in self.running}
        if not ended or not self.running:
            return ""
        node = node if node in ended else min(ended)
        self.launch(node)
        return f"node {node}"

    def _kill_all(self, node: int, pids: list[int]) -> None:
        self.lost_nodes.add(node)
        for each in self.running:
            if each.node == node:
                each.signals.append(signal.SIGKILL)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_frozen(folder: Path, pid: int) -> bool:
    return str(pid) in (folder / "cgroup.procs").read_text().split()


def _fill(disk: Path) -> None:
    with suppress(OSError), (disk / "full").open("ab", buffering=0) as file:
        for size in (1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass


@contextmanager
def _disks(job: ChaosJob) -> Iterator[None]:
    with ExitStack() as stack:
        for node in range(job.shape.launchers):
            for name, size in DISKS.items():
                folder = job.disk(node, name)
                folder.mkdir()
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
                stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
        yield


@contextmanager
def chaos_job(shape: Shape, folder: Path, tag: str) -> Iterator[ChaosJob]:
    """A job that is started; all of it is removed at the end."""
    with network(shape.launchers + 1) as hosts:
        job = ChaosJob(shape, folder, hosts, tag)
        with _disks(job):
            try:
                job.start()
                yield job
            finally:
                job.close()
