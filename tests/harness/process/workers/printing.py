"""Workers that print: `printing.py CASE`, for per-cycle logs."""

from __future__ import annotations

import os
import signal
import sys
import time

rank, cycle = (int(os.environ.get(name, "0")) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
LINES = 40_000


def fails() -> None:
    """Rank 2 raises in cycle 0; nobody calls torch's `record`."""
    print(f"step of cycle {cycle}", flush=True)
    if cycle == 0:
        if rank == 2:
            raise ValueError("the batch is empty")
        time.sleep(60)


def lacks() -> None:
    """Rank 1 lacks a file in every cycle."""
    print(f"step of cycle {cycle}", flush=True)
    if rank == 1:
        open("/does/not/exist.bin")  # noqa: SIM115
    time.sleep(60)


def lacks_once() -> None:
    """The same in cycle 0 alone."""
    if cycle == 0:
        lacks()


def lacks_twice() -> None:
    """The same in cycle 0, and in cycle 1 once its test has opened a gate."""
    while cycle and not os.path.exists(os.environ["NVRX_TEST_GATE"]):
        time.sleep(0.02)
    if cycle < 2:
        lacks()


def raises_once() -> None:
    """Rank 1 raises in cycle 0, what a restart may mend; cycle 1 ends once its test has opened a gate."""
    if cycle == 0:
        if rank == 1:
            raise ValueError("the batch is empty")
        time.sleep(60)
    while not os.path.exists(os.environ["NVRX_TEST_GATE"]):
        time.sleep(0.02)


def crashes_beside_a_handler() -> None:
    """Rank 1 crashes in every cycle once rank 0 says on SIGTERM that it was sent that."""
    ready = f"{os.environ['NVRX_TEST_GATE']}.{cycle}"
    if rank == 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("Received SIGTERM, saving", flush=True)))
        open(ready, "x").close()
        time.sleep(60)
    while not os.path.exists(ready):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGSEGV)


def is_killed() -> None:
    """Rank 2 kills itself right after a print, in the middle of a line."""
    if cycle == 0:
        if rank == 2:
            os.write(1, b"the last words")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def prints() -> None:
    """Prints for some seconds, and longer than the log server lives."""
    for number in range(LINES):
        print("line", number, "x" * 40)
        if number % 1000 == 0:
            sys.stdout.flush()
            time.sleep(0.1)


def waits_for_its_gate() -> None:
    """Says which launcher it is of, and waits until it may end."""
    print(f"of {os.getppid()}", flush=True)
    while not os.path.exists(os.environ["NVRX_TEST_GATE"]):
        time.sleep(0.02)


def floods() -> None:
    """Prints more than any pipe takes, and fails if that takes long."""
    began = time.monotonic()
    for _ in range(256):
        os.write(1, b"x" * 65535 + b"\n")
    if time.monotonic() - began > 30:
        raise TimeoutError("a worker waits for its log")


CASES = {
    each.__name__: each
    for each in (
        fails,
        lacks,
        lacks_once,
        lacks_twice,
        raises_once,
        crashes_beside_a_handler,
        is_killed,
        prints,
        waits_for_its_gate,
        floods,
    )
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
