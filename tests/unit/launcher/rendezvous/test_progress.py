"""How far the ranks of other nodes are, over the rendezvous store."""

import pytest
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.progress import ProgressBoard, ProgressSummary, slowest_of_job

from nvrx_core.fault_tolerance.peers import Progress


class DictStore(dict):
    def set(self, key, value):
        self.writes = getattr(self, "writes", 0) + 1
        self[key] = value.encode()

    def get(self, key):
        return self[key]

    def multi_get(self, keys):
        return [self[key] for key in keys]

    def check(self, keys):
        return all(key in self for key in keys)


class Nodes:
    """Two ranks a node, by the steps that they have begun."""

    def __init__(self, count):
        self.store, self.cycle = DictStore(), 0
        self.steps = dict.fromkeys(range(2 * count), 5)
        self.boards = [ProgressBoard("progress{}".format, lambda node=node: self.own(node)) for node in range(count)]

        self.summary = ProgressSummary("progress{}".format)

    def own(self, node):
        return self.cycle, [Progress(rank, self.steps[rank], 0) for rank in (2 * node, 2 * node + 1)]

    def beat(self):
        for node, board in enumerate(self.boards):
            board.write(self.store, node)
        self.summary.collect(self.store, range(len(self.boards)))


def test_a_node_reads_the_slowest_ranks_of_the_others():
    nodes = Nodes(3)
    nodes.steps[3] = 4
    nodes.beat()
    assert [each.rank for each in nodes.boards[0].read(nodes.store)] == [3]
    assert [each.rank for each in nodes.boards[1].read(nodes.store)] == [0]


def test_nothing_is_written_that_has_not_changed():
    nodes = Nodes(2)
    nodes.beat()
    writes = nodes.store.writes
    nodes.beat()
    assert nodes.store.writes == writes
    nodes.steps = dict.fromkeys(nodes.steps, 6)
    nodes.boards[1].write(nodes.store, 1)
    assert nodes.store.writes == writes + 1


def test_ranks_of_an_earlier_cycle_do_not_count():
    nodes = Nodes(2)
    nodes.beat()
    nodes.cycle = 1
    assert nodes.boards[0].read(nodes.store) == []
    nodes.boards[1].write(nodes.store, 1)
    nodes.summary.collect(nodes.store, range(2))
    assert [each.rank for each in nodes.boards[0].read(nodes.store)] == [2]


def test_nothing_is_known_before_all_nodes_have_written():
    nodes = Nodes(2)
    nodes.boards[0].write(nodes.store, 0)
    nodes.summary.collect(nodes.store, range(2))
    nodes.summary.collect(nodes.store, ())
    assert nodes.boards[0].read(nodes.store) == []


MALFORMED = [b"", b"[]", b'{"cycle": 0}', b'{"cycle": 0, "ranks": 5}', b'{"cycle": 0, "ranks": [5]}']


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_value_says_nothing(text):
    nodes = Nodes(2)
    nodes.beat()
    nodes.store["progress-1"] = text
    assert nodes.boards[0].read(nodes.store) == []


def test_a_job_without_nodes_has_no_slowest_rank():
    assert slowest_of_job({}) == (-1, [])


def test_the_keys_of_nodes_and_of_the_job_differ():
    keys = RendezvousKeys("job").progress
    assert keys(0) == "nvrx-rendezvous/job/progress/0"
    assert keys(-1) != keys(1)
