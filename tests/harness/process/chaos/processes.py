"""The processes of a job, by what they are: found by their environment, their command line and their parents."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "census", "of_kind", "stands_at"]

NODE = "NVRX_TEST_NODE"


class Process(NamedTuple):
    """One process of a job, and the node that it belongs to."""

    pid: int
    node: int
    kind: str
    state: str
    command: str


def census(tag: str, variable: str, *, workers: Collection[int], launchers: Collection[int]) -> list[Process]:
    """Return the living processes whose environment carries a tag, by pid.

    Args:
        tag: the value of the variable.
        variable: its name.
        workers: the processes that have said that they are workers.
        launchers: those that were started as launchers.
    """
    mark, found = f"{variable}={tag}".encode(), list[Process]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, IndexError, ValueError):
            environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if mark not in environment:
                continue
            node = next((int(each.partition(b"=")[2]) for each in environment if each.startswith(NODE.encode())), -1)
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{name}/cmdline").read_text().replace("\0", " ")
            if fields[0] not in "ZX":
                kind = _kind(int(name), int(fields[1]), command, workers, launchers)
                found.append(Process(int(name), node, kind, fields[0], command))
    return found


def _kind(pid: int, parent: int, command: str, workers: Collection[int], launchers: Collection[int]) -> str:  # noqa: PLR0911
    if pid in launchers:
        return "launcher"
    if "guardian" in command:
        return "guardian"
    if "nvrx_launcher.store_program" in command:  # its argument is the descriptor that it listens on, or an endpoint
        return "control_store" if re.search(r"store_program \d+ ", command) else "store_query"
    if "nvrx_core.fault_tolerance" in command:
        return "fork_server" if parent in launchers else "monitor"
    if pid in workers:
        return "worker"
    if re.search(r"worker_program.py \d+ ", command) and parent in launchers:  # its argument is a socket
        return "standby"
    if "launcher_chaos.py" in command:  # a fork of a worker; a worker says at once that it is one
        return "call_monitor"
    return "rendezvous" if "nvrx_core.store" in command else "other"


def of_kind(processes: list[Process], kind: str, node: int, index: int) -> list[int]:
    """Return the pid of one process of a kind on a node, or anywhere if the node has none; no pid if there is none."""
    some = [each for each in processes if each.kind == kind]
    here = sorted(each.pid for each in some if each.node == node) or sorted(each.pid for each in some)
    return [here[index % len(here)]] if here else []


def stands_at(pid: int) -> str:
    """Return what the threads of a process wait for in the kernel."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with suppress(OSError):
            name, where = (task / "comm").read_text().strip(), (task / "wchan").read_text()
            found.append(f"{name}: {(task / 'stat').read_text().rpartition(')')[2].split()[0]} {where}")
    return ", ".join(found)
