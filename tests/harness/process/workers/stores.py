"""The stores that a job may keep its state in, other than torch's TCPStore; run by itself, a rank that uses what is
handed out over them: `ctx.store` in its rank assignment, `iteration_store()` in its function.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.inprocess import store
from nvrx_core.inprocess.rank_assignment import ActivateAllRanks, RankAssignment, RankAssignmentCtx, ShiftRanks
from tests.harness.process.workers.plan import Plan
from tests.harness.process.workers.record import Record

__all__ = ["Sqlite", "WithoutClone", "store_settings"]


class Sqlite(store.StoreMixin, dist.Store):
    """A user's own store: a table in a file, and nothing of torch but the base class."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.table = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self.table.execute("CREATE TABLE IF NOT EXISTS store (key TEXT PRIMARY KEY, value BLOB)")

    def __del__(self) -> None:
        self.table.close()

    def _change(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        self.table.execute("BEGIN IMMEDIATE")
        try:
            value = change(self._read(key))
            if value is not None:
                self.table.execute("INSERT OR REPLACE INTO store VALUES (?, ?)", (key, value))
            return value
        finally:
            self.table.execute("COMMIT")

    def _read(self, key: str) -> bytes | None:
        row = self.table.execute("SELECT value FROM store WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def set(self, key: str, value: str | bytes) -> None:
        self._change(key, lambda _: _bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._read(key) or b""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def add(self, key: str, amount: int) -> int:
        return int(self._change(key, lambda old: str(int(old or b"0") + amount).encode()) or b"0")

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        before, after = _bytes(expected), _bytes(desired)
        self._change(key, lambda old: after if (old or b"") == before else None)
        return self._read(key) or before

    def check(self, keys: list[str]) -> bool:
        return all(self._read(key) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.table.execute("DELETE FROM store WHERE key = ?", (key,)).rowcount > 0

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        end = time.monotonic() + (timeout or timedelta(seconds=60)).total_seconds()
        while not self.check(keys):
            if time.monotonic() > end:
                raise TimeoutError(f"{keys} are not all there")
            time.sleep(0.01)


class WithoutClone(store.TCPStore):
    """torch's store as it was before it had `clone`."""

    def clone(self) -> dist.Store:
        raise NotImplementedError


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def store_settings(kept_in: str) -> dict[str, Any]:
    """The wrapper's parameters for `etcd ENDPOINTS`, `file PATH`, `sqlite PATH`, `without-clone`; "" for the default.

    In `etcd-3s ENDPOINTS` it counts as lost after 3 s and not after 10.
    """
    kind, _, where = kept_in.partition(" ")
    match kind:
        case "etcd":
            return {"store_factory": store.EtcdStore, "store_kwargs": {"endpoints": where}}
        case "etcd-3s":
            kwargs = {"endpoints": where, "lost_after": timedelta(seconds=3)}
            return {"store_factory": store.EtcdStore, "store_kwargs": kwargs}
        case "without-clone":
            return {"store_factory": WithoutClone}
        case "file":
            return {"store_factory": store.FileStore, "store_kwargs": {"file_name": where}}
        case "sqlite":
            return {"store_factory": Sqlite, "store_kwargs": {"path": where}}
    return {}


class Exchange(RankAssignment):
    """The ranks tell each other who they are, and wait for each other."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        state, shared = ctx.state, ctx.store
        living = [rank for rank in range(state.world_size) if rank not in ctx.terminated_ranks]
        shared.send_state(state)
        shared.send_key({"initial": state.initial_rank}, state.rank)
        shared.barrier([state.rank], "all are here", len(living))
        initial = [other.initial_rank for other in shared.get_states(living)]
        keys = [key["initial"] for key in shared.get_keys(living)]
        self.record("exchange", iteration=state.iteration, initial=initial, keys=keys)
        return ctx


def main() -> None:
    record, me = Record.of_environment(), int(os.environ["RANK"])

    @inprocess.Wrapper(
        rank_assignment=inprocess.Compose(ActivateAllRanks(), ShiftRanks(), Exchange(record)),
        **store_settings(Plan.of_environment().kept_in),
    )
    def train(call: inprocess.CallWrapper) -> int:
        shared = call.iteration_store()
        record("store", iteration=call.iteration, number=shared.add("arrived", 1), kind=type(shared).__name__)
        shared.set(f"here/{os.environ['RANK']}", "")
        shared.wait([f"here/{other}" for other in range(int(os.environ["WORLD_SIZE"]))])
        if call.iteration == 0:
            if me == 1:
                raise ValueError("injected")
            time.sleep(60)
        return call.iteration

    record("done", result=train())


if __name__ == "__main__":
    main()
