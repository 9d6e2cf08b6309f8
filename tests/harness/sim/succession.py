"""The succession of coordinators: launchers elect, decide and resign on one store, one operation at a time.

Election and decision log are the shipped ones. Each operation on the store is a point at which another launcher may go
on, and time passes: one that is not chosen for a while stands still there, for example between the two writes of a
claim, while its lease expires.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Final

import torch.distributed as dist
from nvrx_launcher.rendezvous import coordinator_host, election
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.term import Checkpoint, Entry, Term
from nvrx_launcher.rendezvous_settings import RendezvousSettings

from tests.harness.sim.rendezvous_mutants import load

__all__ = ["MUTANTS", "Succession", "SuccessionFailure"]

KEYS: Final = RendezvousKeys("job")
SETTINGS: Final = RendezvousSettings(keep_alive_interval=1.0, keep_alive_max_attempt=5)
OPERATION: Final = 0.2
"""Seconds that an operation takes at most."""
STALLS: Final = (0, 0, 0, 10, 40)
"""For how many operations of the others a launcher may stand still."""
TURNS: Final = 6
"""Beats of a launcher in which it may stand still; QUIET more follow, in which none does."""
QUIET: Final = 12
MUTANTS: Final[dict[str, tuple[ModuleType, str, str]]] = {
    "a refused write does not cancel the later ones": (
        coordinator_host, "        if self.is_fenced:\n            return False\n", ""),
    "a claim is opened although another one has replaced it": (
        election, "if store.compare_set(self._keys.leader, mine.to_text(), opened).decode() != opened:",
        "if store.set(self._keys.leader, opened):"),
    "a late claim is fenced after that of its successor": (
        election, "        if entry.term > mine.number:\n            return None\n", ""),
    "a coordinator resigns for its successor": (
        coordinator_host, "store.compare_set(self._keys.leader, self.term.to_text(), over)",
        "store.set(self._keys.leader, over)"),
}  # fmt: skip


class SuccessionFailure(AssertionError):
    """A violated rule, and the schedule."""


@dataclass
class Turn:
    """A launcher's thread: whether it may go on, for how long it stands still, and how it has ended."""

    may_go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stalled: int = 0
    is_over: bool = False
    error: BaseException | None = None


class Succession:
    """A few launchers on one store.

    Args:
        seed: of the schedule.
        mutant: a mistake in the shipped modules; None: as they are.
        launchers: how many there are.
    """

    def __init__(self, seed: int, mutant: str | None = None, launchers: int = 3) -> None:
        self.rng, self.now, self.history = random.Random(seed), 0.0, list[str]()
        self.seed, self.values = seed, dict[str, str]()
        mistake = (None, "", "") if mutant is None else MUTANTS[mutant]
        both = (election, coordinator_host)
        loaded = [load(each, *mistake[1:]) if each is mistake[0] else load(each) for each in both]
        self.election, self.log = loaded
        self.election.time = SimpleNamespace(monotonic=lambda: self.now)  # type: ignore[attr-defined]
        self.turns = [Turn() for _ in range(launchers)]
        self.idle = threading.Semaphore(0)
        self.leading = dict[int, int]()
        state = Coordinator(Rules(1, 1, 0))
        state.start(now=0.0)
        self.checkpoint = Checkpoint(state.state(now=0.0), 0)

    def run(self) -> None:
        """Run to the end.

        Raises:
            SuccessionFailure: when a rule is broken.
        """
        threads = [threading.Thread(target=self._run, args=(node,), daemon=True) for node in range(len(self.turns))]
        for thread in threads:
            thread.start()
        for _ in threads:
            self.idle.acquire()  # each is at its first operation
        while waiting := [turn for turn in self.turns if not turn.is_over]:
            ready = [turn for turn in waiting if not turn.stalled] or waiting
            for turn in waiting:
                turn.stalled = max(0, turn.stalled - 1)
            self.now += self.rng.uniform(0.0, OPERATION)
            self.rng.choice(ready).may_go.release()
            self.idle.acquire()
        for turn in self.turns:
            if turn.error is not None:
                raise turn.error
        self._check_end()

    def step(self, node: int) -> None:
        """Let others go on; called before each operation of a launcher."""
        self.idle.release()
        self.turns[node].may_go.acquire()

    def _run(self, node: int) -> None:
        turn = self.turns[node]
        try:
            self.step(node)
            self._launch(node)
        except BaseException as error:
            turn.error = error
        turn.is_over = True
        self.idle.release()

    def _launch(self, node: int) -> None:
        store, log, leads, number = Store(self, node), None, 0, -1
        candidate = self.election.Election(KEYS, SETTINGS, hosts_store=False)
        candidate._pause = SimpleNamespace(wait=lambda _: self.step(node))
        store.add(KEYS.lease(node), 1)
        opening = candidate.enter(store, node)
        resigns_at = self.rng.choice((None, None, self.rng.randrange(1, TURNS)))
        for turn in range(TURNS + QUIET):
            if opening.term.node == node and opening.term.number != leads:
                log, number, leads = self.log.DecisionLog(KEYS, opening.term), opening.decided, opening.term.number
            if log is not None and turn < TURNS:
                for _ in range(self.rng.randrange(3)):  # they are queued, and written one after the other
                    number += 1
                    entry = Entry(opening.term.number, (Decision(DecisionKind.STOP, 0, f"by {node}"),))
                    log.write(store, number, Entry(log.term.number, entry.decisions), self.checkpoint)
                log = None if log.is_fenced else log
            self.leading[node] = leads if log is not None else 0
            if turn == resigns_at and log is not None:
                log.resign(store)
                self.leading[node] = 0
                return
            self.turns[node].stalled = self.rng.choice(STALLS) if turn < TURNS else 0
            store.add(KEYS.lease(node), 1)
            opening = candidate.observe(store, node, opening.term)
        if opening.term.node == node and opening.term.number != leads:
            self.leading[node] = opening.term.number

    def written(self, node: int, key: str, before: str | None, value: str) -> None:
        """Check the rules on a write: terms only grow, and so do those of the decisions."""
        self.history.append(f"{self.now:.1f} {node}: {key.rpartition('job/')[2]} = {value[:90]}")
        if key == KEYS.leader and before:
            old, new = Term.from_text(before), Term.from_text(value)
            if (new.number, new.is_open, new.is_over) < (old.number, old.is_open, old.is_over):
                self._break("the term goes backwards")
        if key.startswith(KEYS.decision(0)[:-1]):
            number = int(key.rpartition("/")[2])
            last = self.values.get(KEYS.decision(number - 1))
            if before is not None or (number > 1 and last is None):
                self._break("a number is written twice, or left out")
            if last is not None and Entry.from_text(last).term > Entry.from_text(value).term:
                self._break("a decision of a term after the fence of a later one")

    def _check_end(self) -> None:
        """The launcher that has the term runs the coordinator, unless it has resigned."""
        term = Term.from_text(self.values[KEYS.leader])
        if not term.is_over and self.leading.get(term.node) != term.number:
            self._break(f"{term} has no coordinator: {self.leading}")

    def _break(self, what: str) -> None:
        raise SuccessionFailure(f"{what}, seed {self.seed}:\n" + "\n".join(self.history[-40:]))


class Store:
    """A launcher's connection to the store."""

    def __init__(self, world: Succession, node: int) -> None:
        self._world, self._node, self.store = world, node, None

    def _step(self) -> dict[str, str]:
        self._world.step(self._node)
        self._world.turns[self._node].stalled = self._world.rng.choice((*STALLS, 0, 0, 0, 0, 0, 0))
        return self._world.values

    def _write(self, key: str, value: str) -> None:
        before = self._world.values.get(key)
        self._world.written(self._node, key, before, value)
        self._world.values[key] = value

    def check(self, keys: list[str]) -> bool:
        return self._step().keys() >= set(keys)

    def get(self, key: str) -> bytes:
        values = self._step()
        if key not in values:
            raise dist.DistStoreError("not there")
        return values[key].encode()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        values = self._step()
        return [values[key].encode() for key in keys]

    def set(self, key: str, value: str) -> None:
        self._step()
        self._write(key, value)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        values = self._step()
        if values.get(key, "") == expected:
            self._write(key, desired)
        return values.get(key, expected).encode()

    def add(self, key: str, amount: int) -> int:
        values = self._step()
        values[key] = str(int(values.get(key, "0")) + amount)
        return int(values[key])

    def delete_key(self, key: str) -> bool:
        return self._step().pop(key, None) is not None

    def wait(self, keys: list[str], _: timedelta) -> None:
        if not self.check(keys):
            raise dist.DistStoreError("not there")
