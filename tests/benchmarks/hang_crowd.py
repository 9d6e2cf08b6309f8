"""The cost of one verdict on a hang under rank monitors, for a job of 1,000 nodes: `hang_verdicts.py --nodes N`.

The store is the product's, in a process of its own; this process is the coordinator's launcher: `HangPolicy`, the
relay, the log of decisions, `GatherEvidence`. The other launchers are played by one more process, with two connections
each (`wire.py`), which asks what they ask: all of them suspect the hang, wait for the decisions, and write their
evidence. What 1,000 machines do side by side, this one does one after the other: the seconds are an upper bound.

`python hang_crowd.py HOST PORT NODES RANKS CULPRIT` is that process.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from nvrx_launcher.hang_policy import AskRanks, GatherEvidence, HangAction, HangPolicy, ShareEvidence, TellCoordinator
from nvrx_launcher.rendezvous.coordinator_host import DecisionLog
from nvrx_launcher.rendezvous.hang_relay import HangRelay
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, Message, MessageKind
from nvrx_launcher.rendezvous.progress import existing
from nvrx_launcher.rendezvous.term import Entry, Term
from wire import Wire

from nvrx_core.collective import Collective
from nvrx_core.fault.hang_report import HangReport, Waiting
from nvrx_core.fault.hang_verdict import HangVerdict
from nvrx_core.fault.stack_text import Frame
from nvrx_core.process.file_limit import allow_more_files
from nvrx_core.store.connection import StoreConnection

__all__ = ["measure"]

KEYS = RendezvousKeys("bench")
WITHIN = timedelta(seconds=60)
LOOPBACK = "127.0.0.1"
"""From where the others connect: the store looks up the name of each peer, which may take a tenth of a second."""


def reports(node: int, ranks: int, world: int, culprit: int) -> list[HangReport]:
    """What the ranks of a node show: all wait for the culprit."""
    waits = HangReport(
        rank=0, initial_rank=0, host=f"node-{node:05}", pid=4711, waiting=Waiting.WAITS, silent=612.0, step=12345,
        place=Frame("/home/user/training/project/train.py", 188, "train_step"), wait="a socket", section="step",
        inner=Frame("/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", 2999, "all_reduce"),
        collective=Collective("all_reduce", "0", "", 57, frozenset(range(world))), section_seconds=611.5,
        begun={"0": 57, **{str(group): 1000 + group for group in range(1, 9)}},
    )  # fmt: skip
    found = [replace(waits, rank=ranks * node + local, initial_rank=ranks * node + local) for local in range(ranks)]
    stands = {"waiting": Waiting.ELSEWHERE, "collective": None, "begun": {"0": 56}, "wait": "a lock"}
    return [replace(each, **cast(Any, stands)) if each.rank == culprit else each for each in found]


class Launchers:
    """All launchers but the coordinator's, which is that of node 0."""

    def __init__(self, host: str, port: int, nodes: int, ranks: int, culprit: int) -> None:
        allow_more_files()
        self.nodes, self.last_hang = range(1, nodes), ""
        self.asking = {node: Wire(host, port, LOOPBACK) for node in self.nodes}
        self.following = {node: Wire(host, port, LOOPBACK) for node in self.nodes}
        self.evidence = {
            node: "\n".join(each.encode() for each in reports(node, ranks, nodes * ranks, culprit))
            for node in self.nodes
        }

    def play(self, cycle: int, decision: int) -> dict[str, float]:
        """Play one hang; return when it has begun and ended, and the CPU time that this process took."""
        for node in self.nodes:
            self.following[node].ask(KEYS.decision(decision))
        begin, cpu = time.monotonic(), time.process_time()
        for node in self.nodes:
            self.asking[node].exchange(KEYS.last_hang, self.last_hang, f"{cycle}:{node}:1")
        for node in self.nodes:
            self.asking[node].take_value()
            if self.asking[node].answer.decode() == f"{cycle}:{node}:1":
                self.tell(node, MessageKind.HANG_SUSPECTED, cycle, f"{cycle}:{node}:1")
        for node in self.nodes:
            self.read(node, decision)
            self.following[node].ask(KEYS.decision(decision + 1))
            hang = self.last_hang = json.loads(self.following[node].answer)["decisions"][0]["reason"]
            wire = self.asking[node]
            wire.set(KEYS.evidence(node), f"{hang}\n{self.evidence[node]}")
            wire.add(KEYS.evidence_count(hang), 1)
            wire.flush()
        for node in self.nodes:
            if self.asking[node].take_count() == len(self.nodes) + 1:
                self.tell(node, MessageKind.HANG_EVIDENCE, cycle, self.last_hang)
        for node in self.nodes:
            self.read(node, decision + 1)
        return {"begin": begin, "end": time.monotonic(), "cpu": time.process_time() - cpu}

    def tell(self, node: int, kind: MessageKind, cycle: int, reason: str) -> None:
        """Send the coordinator a message."""
        wire = self.asking[node]
        wire.add(KEYS.inbox, 1)
        wire.flush()
        wire.set(KEYS.message(wire.take_count()), json.dumps(Message(node, kind, cycle, reason).to_json()))
        wire.flush()

    def read(self, node: int, decision: int) -> None:
        """Read a decision, as torch's `wait` and `get` do, when it is there."""
        wire = self.following[node]
        wire.take_push()
        wire.ask(KEYS.decision(decision))
        wire.take_push()
        wire.read(KEYS.decision(decision))
        wire.take_value()


@dataclass(frozen=True)
class Hang:
    """One hang: seconds from the suspicion, and CPU seconds.

    Attributes:
        written: until the coordinator's launcher knows that all have written their evidence.
        judged: until it has the verdict.
        told: until all have the line.
        store: CPU of the store.
        launcher: CPU of the coordinator's launcher; `reading` and `judging` are parts of it.
        crowd: CPU of the process that plays the others.
        bytes: of all evidence.
    """

    written: float
    judged: float
    told: float
    store: float
    launcher: float
    reading: float
    judging: float
    crowd: float
    bytes: int


class Launcher:
    """The launcher of node 0, which runs the coordinator."""

    def __init__(self, host: str, port: int, nodes: int, ranks: int, culprit: int) -> None:
        def connect() -> dist.Store:
            return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=WITHIN)

        self.store = StoreConnection(connect, connect, {})
        self.members = tuple(Member(node, ranks * node, ranks) for node in range(nodes))
        self.own = dict(enumerate(reports(0, ranks, nodes * ranks, culprit)))
        self.relay, self.policy = HangRelay(), HangPolicy("node-00000")
        self.policy.joined(0)
        self.term = Term(1, 0, hosts_store=True)
        self.log, self.handled, self.decided = DecisionLog(KEYS, self.term), 0, 0
        self.gathered = self.judged = self.reading = self.judging = 0.0
        self.bytes, self.verdict = 0, ""
        for node in range(nodes):
            self.store.set(KEYS.evidence(node), "-")

    def play(self, cycle: int) -> HangVerdict:
        """Play one hang, until the verdict is written."""
        self.policy.decided(Decision(DecisionKind.RUN, cycle, "", members=self.members), judges=True, now=0.0)
        last = self.decided + 2
        while self.decided < last:
            self.handled += 1
            key = KEYS.message(self.handled)
            self.store.wait([key], WITHIN)
            message, now = Message.from_text(self.store.get(key)), time.monotonic()
            if message.kind is MessageKind.HANG_EVIDENCE:
                self.gathered = now
                self.carry_out(self.policy.evidence_received(message.cycle, message.reason, now=now))
            for decision in self.relay.received(message, cycle=cycle, judge=0, now=now):
                self.decided += 1
                assert self.log.write(self.store, self.decided, Entry(1, (decision,)), cast(Any, None))
                self.carry_out(self.policy.decided(decision, judges=True, now=now))
        return HangVerdict.decode(self.verdict)

    def carry_out(self, actions: tuple[HangAction, ...]) -> None:
        for action in actions:
            match action:
                case ShareEvidence(_, hang, text, _):
                    self.store.set(KEYS.evidence(0), text)
                    self.store.add(KEYS.evidence_count(hang), 1)
                case GatherEvidence(members=members):
                    began = time.process_time()
                    texts = existing(self.store, [KEYS.evidence(member.node) for member in members]) or []
                    read = time.process_time()
                    verdict = action.judged(texts)
                    self.reading, self.judging = read - began, time.process_time() - read
                    self.judged, self.bytes = time.monotonic(), sum(map(len, texts))
                    self.carry_out(self.policy.gathered(action, verdict))
                case TellCoordinator(kind, cycle, reason):
                    self.verdict = reason
                    key = KEYS.message(self.store.add(KEYS.inbox, 1))
                    self.store.set(key, json.dumps(Message(0, kind, cycle, reason).to_json()))
                    self.store.check([key])
                case AskRanks(number):
                    self.carry_out(self.policy.reported(number, self.own))
                case _:
                    pass


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def measure(nodes: int, ranks: int, hangs: int, cpu_of: Callable[[int], float]) -> None:
    """Play some hangs, and print what they cost; medians."""
    culprit, found = nodes * ranks // 2 + 1, list[Hang]()
    with started("-m", "nvrx_core.store") as store:
        assert store.stdout is not None
        host, port = store.stdout.readline().strip().split(":")
        here = str(Path(__file__).resolve())
        with started(here, host, port, str(nodes), str(ranks), str(culprit)) as crowd:
            assert crowd.stdin is not None
            assert crowd.stdout is not None
            crowd.stdout.readline()
            launcher = Launcher(host, int(port), nodes, ranks, culprit)
            for cycle in range(hangs):
                before, own = cpu_of(store.pid), time.process_time()
                crowd.stdin.write(f"{cycle} {launcher.decided + 1}\n")
                crowd.stdin.flush()
                verdict = launcher.play(cycle)
                own = time.process_time() - own
                said = json.loads(crowd.stdout.readline())
                assert (verdict.culprits, verdict.missing) == ((culprit,), ()), verdict.sentence
                since, end, cpu = said["begin"], said["end"], said["cpu"]
                found.append(
                    Hang(
                        launcher.gathered - since, launcher.judged - since, end - since, cpu_of(store.pid) - before,
                        own, launcher.reading, launcher.judging, cpu, launcher.bytes,
                    )
                )  # fmt: skip

    def ms(name: str) -> str:
        return f"{statistics.median(getattr(each, name) for each in found) * 1e3:.0f} ms"

    print(f"{nodes} nodes of {ranks} ranks, {hangs} hangs, {found[0].bytes / 1e6:.2f} MB of evidence")
    print(f"from the suspicion until all have written: {ms('written')}, until the verdict: {ms('judged')}", end="")
    print(f", until all have the line: {ms('told')}")
    print(f"CPU time of the store: {ms('store')}; of the coordinator's launcher: {ms('launcher')}", end="")
    print(f", of it to read {ms('reading')}, to judge {ms('judging')}")
    print(f"CPU time of the process that plays the others: {ms('crowd')}")


def main() -> None:
    host, *numbers = sys.argv[1:]
    launchers = Launchers(host, *map(int, numbers))
    print("connected", flush=True)
    for line in sys.stdin:
        print(json.dumps(launchers.play(*map(int, line.split()))), flush=True)


if __name__ == "__main__":
    main()
