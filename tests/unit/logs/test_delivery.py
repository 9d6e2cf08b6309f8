"""Nodes and a server with any sequence of broken calls: each line once, in order, or counted as lost."""

from __future__ import annotations

import re

from hypothesis import given, strategies as st

from nvrx_core.logs.node_buffer import NodeBuffer
from nvrx_core.logs.reception import Reception
from nvrx_core.logs.write_queue import WriteQueue

OUTCOMES = ("written", "lost before", "lost after", "half")
STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 400), st.sampled_from(OUTCOMES)), max_size=60)


class Run:
    def __init__(self) -> None:
        self.nodes = [NodeBuffer(f"n{number}", "s", limit=3000) for number in range(2)]
        self.server, self.queue, self.files = Reception(), WriteQueue[None](), dict[str, bytes]()
        self.now, self.count = 0.0, [0, 0]

    def put(self, node: int, count: int) -> None:
        text = b"".join(b"%d: %d\n" % (node, self.count[node] + each) for each in range(count))
        self.count[node] += count
        self.nodes[node].put(f"/cycle{self.count[node] // 500}", text, now=self.now)

    def send(self, node: int, outcome: str) -> None:
        batch = self.nodes[node].take(now=self.now)
        if not batch:
            return
        received = {"lost before": 0, "half": len(batch) // 2}.get(outcome, len(batch))
        for chunk in batch[:received]:
            self.queue.put(chunk.path, self.server.accept(chunk, now=self.now), None)
        if outcome == "written":
            self.nodes[node].written(now=self.now)
        else:
            self.nodes[node].failed(now=self.now)

    def write(self) -> None:
        while (write := self.queue.take(now=self.now)) is not None:
            count = (len(write.data) + 1) // 2
            self.files[write.path] = self.files.get(write.path, b"") + write.data[:count]
            self.queue.wrote(write.path, count)


@given(STEPS)
def test_each_line_arrives_once_and_in_order_or_is_counted(steps):
    run = Run()
    for node, count, outcome in steps:
        run.now += 1.0
        run.put(node, count)
        run.send(node, outcome)
        run.write()
    for number, node in enumerate(run.nodes):
        node.end(now=run.now, within=1000.0)
        while not node.is_done:
            run.now += 10.0
            run.send(number, "written")
    run.write()
    lines = [line for _, text in sorted(run.files.items(), key=order) for line in text.decode().splitlines()]
    for number, node in enumerate(run.nodes):
        found = [int(line.split()[1]) for line in lines if line.startswith(f"{number}: ")]
        assert found == sorted(set(found))
        notices = re.findall(rf"up to (\d+) lines \(\d+ bytes\) of node n{number} ", "\n".join(lines))
        # what a node has dropped after its call broke may be in the file, so that both counts are upper bounds
        assert run.count[number] - len(found) <= node.lost.lines <= sum(map(int, notices))
    assert run.server.is_over(now=run.now) is False
    run.server.end(now=run.now, within=1.0)
    assert run.server.is_over(now=run.now)


def order(file: tuple[str, bytes]) -> int:
    return int(file[0].removeprefix("/cycle"))
