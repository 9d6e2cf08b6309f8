"""How the training is started: two launchers or agents, and one more that waits."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from demo_parts.ports import LOOPBACK, free_port
from demo_parts.processes import Processes, wait_for
from demo_parts.settings import Settings
from demo_parts.signals import unsignalled

from launcher_parts.faults import NODE, release_file
from launcher_parts.plan import HEARTBEAT, LAYERS, NODES, SECTION, WORKERS

__all__ = ["LaunchedRun", "cycle_logs"]

TRAINING: Final = Path(__file__).with_name("training.py")
MAX_RESTARTS: Final = 10
READY: Final = re.compile(r"\] a standby worker for local rank \d+ is ready")
CYCLE: Final = re.compile(r"\] cycle \d+: ")
"""What a launcher logs when a standby worker is ready, and when its workers are started."""
IMPORTS: Final = "torch,torch._dynamo"
"""What an optimizer imports at its first step is half as much again as torch itself."""
LOGS: Final = "logs"
"""The folder of the logs of all workers, in that of a run under `ft_launcher`."""
LEAVE_WITHIN: Final = 5.0
FIRST_STARTS: Final = 20.0


class LaunchedRun:
    """A training under launchers; a context manager that ends whatever it has started.

    Args:
        layer: one of `plan.LAYERS`.
        settings: of the training.
        schedule: which fault is injected at which step.

    Attributes:
        launchers: the processes of the launchers; the first one hosts the rendezvous.
        left_behind: after the end, the processes that were there when none should have been.
    """

    def __init__(self, layer: str, settings: Settings, schedule: dict[int, str]) -> None:
        self.layer, self.settings, self._schedule = layer, settings, schedule
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.left_behind = set[int]()
        self._processes = Processes(Path(settings.folder))
        self._port = free_port()

    def __enter__(self) -> Self:
        shutil.rmtree(self.settings.folder, ignore_errors=True)
        for folder in (self.settings.records, self.settings.checkpoints, Path(self.settings.folder, LOGS)):
            folder.mkdir(parents=True)
        self._launch()
        _await_listener(self._port)
        self._launch()
        return self

    def __exit__(self, *_: object) -> None:
        with unsignalled():
            ended = all(launcher.poll() is not None for launcher in self.launchers)
            if ended and self.layer != LAYERS[2]:
                self.left_behind = self._processes.await_leaving(but=(), seconds=LEAVE_WITHIN)
            self._processes.close()

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit code of each launcher, None while it runs."""
        return [launcher.poll() for launcher in self.launchers]

    def launch_spare(self) -> None:
        """Start the launcher that waits."""
        self._launch()

    def release(self, step: int) -> None:
        """Let the fault of a step happen."""
        release_file(self.settings.records, step).touch()

    @property
    def has_begun(self) -> bool:
        """Whether the first launcher has started its workers."""
        return CYCLE.search(self.log_of(0).read_text(errors="replace")) is not None

    @property
    def is_warm(self) -> bool:
        """Whether all launchers that run have a standby worker for each of their ranks; the third one is started."""
        running = [number for number, code in enumerate(self.exit_codes) if code is None]
        return len(self.launchers) > NODES and all(self._standbys(number) >= WORKERS for number in running)

    def _standbys(self, launcher: int) -> int:
        """Count the standby workers that have become ready since a launcher has started its workers."""
        ready = 0
        for line in self.log_of(launcher).read_text(errors="replace").splitlines():
            ready = 0 if CYCLE.search(line) else ready + bool(READY.search(line))
        return ready

    def wait(self, seconds: float) -> bool:
        """Wait until a launcher ends or the time is over; whether any runs."""
        wait_for([each.pid for each in self.launchers if each.poll() is None], seconds)
        return any(code is None for code in self.exit_codes)

    def kill(self, pid: int) -> bool:
        """End one process of this run; returns whether there was one of that number."""
        return self._processes.kill(pid)

    def log_of(self, launcher: int) -> Path:
        """Where a launcher and its workers print."""
        return self._processes.log_of(f"launcher-{launcher}")

    def _launch(self) -> None:
        number = len(self.launchers)
        torchrun = self.layer == LAYERS[2]
        command = ["torch.distributed.run"] if torchrun else ["nvrx_launcher"]
        nodes = str(NODES) if torchrun else f"{NODES}:{NODES + 1}"
        command += ["--nnodes", nodes, "--nproc-per-node", str(WORKERS), "--max-restarts", str(MAX_RESTARTS)]
        command += ["--rdzv-backend", "c10d", "--rdzv-id", "demo", "--rdzv-endpoint", f"{LOOPBACK}:{self._port}"]
        if torchrun:
            command += ["--local-addr", LOOPBACK, "--log-dir", str(self.settings.records / "torchrun")]
        else:
            command += ["--ft-per-cycle-applog-prefix", str(Path(self.settings.folder, LOGS, "train.log"))]
            sections = f"step:{SECTION:g},warmup:60"
            command += ["--ft-warm-workers", "on", "--ft-warm-imports", IMPORTS, "--ft-log-level", "DEBUG"]
            command += ["--ft-rank-section-timeouts", sections, "--ft-rank-heartbeat-timeout", f"{HEARTBEAT:g}"]
        command += [str(TRAINING), self.layer, self.settings.to_json(), json.dumps(self._schedule)]
        environment = {
            NODE: str(number), "GROUP_RANK": str(number), "NVRX_EVENTS_DIR": str(self.settings.records),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }  # fmt: skip
        self.launchers.append(self._processes.start(f"launcher-{number}", *command, environment=environment))


def cycle_logs(folder: Path) -> list[Path]:
    """Return what all workers have printed in the cycles of a run, a file for each cycle, from its folder."""
    return sorted(Path(folder, LOGS).glob("train_cycle*.log"))


def _await_listener(port: int) -> None:
    """Wait until the first launcher listens: it hosts the rendezvous."""
    with suppress(OSError):
        for _ in range(int(FIRST_STARTS / 0.1)):
            with suppress(ConnectionRefusedError), socket.create_connection((LOOPBACK, port), FIRST_STARTS):
                return
            wait_for((), 0.1)
