"""A worker of a launcher that leaves processes of each kind behind: `launcher_family.py CASE`.

It says their pids, as `child`: in its process group, in a session of its own, a daemon, without an environment, and
those of a launcher in it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
PRINTS = """
import sys, time
for number in range(20):
    time.sleep(0.1)
    for stream in (sys.stdout, sys.stderr):
        print("part", number, file=stream, flush=True)
"""
TERMINATES = "import os, signal, time; print(os.getpid(), flush=True); time.sleep(600)"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
DAEMON = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
WITH_ENVIRONMENT = {"group": ("", False, True), "session": ("", True, True), "daemon": (DAEMON, False, True)}
WITHOUT = {"no_environment": ("", False, False), "daemon_without": (DAEMON, True, False)}


def say(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, "rank": RANK, "cycle": CYCLE, "pid": os.getpid(), **fields})
    os.write(1, f"{line}\n".encode())


def leave(before: str, is_session: bool, has_environment: bool, what: str = IGNORES + TERMINATES) -> int:
    """Start a process that stays; returns its pid, or that of the daemon that it becomes."""
    started = subprocess.Popen(
        [sys.executable, "-S", "-c", before + what], start_new_session=is_session, stdout=subprocess.PIPE, text=True,
        env=None if has_environment else {},
    )  # fmt: skip
    started.returncode = 0
    assert started.stdout is not None
    return int(started.stdout.readline())


def stays() -> None:
    """Waits, with all of them."""
    for name, kind in {**WITH_ENVIRONMENT, **WITHOUT}.items():
        say("left", name=name, child=leave(*kind))
    say("ready")
    time.sleep(600)


def tagged() -> None:
    """Waits, with those that have its environment."""
    for name, kind in WITH_ENVIRONMENT.items():
        say("left", name=name, child=leave(*kind))
    say("ready")
    time.sleep(600)


def orphans() -> None:
    """Waits; daemons of its end."""
    for _ in range(5):
        subprocess.run([sys.executable, "-S", "-c", DAEMON], check=True)
    say("ready")
    time.sleep(600)


def nested() -> None:
    """Rank 0 waits, in a launcher of its own; the others just wait."""
    if RANK == 0:
        command = [sys.executable, "-m", "nvrx_launcher", "--nproc-per-node", "1", "--ft-warm-workers", "off", __file__]
        subprocess.run([*command, "tagged"], check=False)
    time.sleep(600)


def fails_once() -> None:
    """Rank 1 fails in the first cycle; all have left processes."""
    if CYCLE == 0:
        for name, kind in {**WITH_ENVIRONMENT, **WITHOUT}.items():
            say("left", name=name, child=leave(*kind))
        say("ready")
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    say("again")
    while not os.path.exists(os.environ["NVRX_TEST_GATE"]):
        time.sleep(0.02)


def done() -> None:
    """Ends with code 0, and leaves a process that ends by SIGTERM, and in rank 0 one that does not."""
    say("left", name="terminates", child=leave("", False, True, TERMINATES))
    say("left", name="terminates", child=leave(DAEMON, False, True, TERMINATES))
    if RANK == 0:
        say("left", name="ignores", child=leave("", False, True))
    say("ready")


def prints() -> None:
    """Ends with code 0; what it leaves prints for 2 s, whatever it is sent, and ends by itself."""
    subprocess.Popen([sys.executable, "-S", "-c", IGNORES + PRINTS]).returncode = 0


def short() -> None:
    """Ends with code 0; what it leaves ends by itself, soon."""
    subprocess.Popen(["sleep", "0.3"]).returncode = 0


if __name__ == "__main__":
    globals()[sys.argv[1]]()
