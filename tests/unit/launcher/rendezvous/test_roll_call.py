"""What is said about the nodes of a job: who has joined or is missing, who is a spare, whose values do not count."""

import math

import pytest
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.roll_call import RollCall, command_difference, named

GIVEN = (("--nnodes", "2:3"), ("--max-restarts", "1"))


class Job:
    """A coordinator and its roll call, as their shell drives them."""

    def __init__(self, least=2, most=3, **rules):
        rules = {"host": "host0", "given": GIVEN, "last_call_timeout": 0.0, "join_timeout": 60.0, **rules}
        self.coordinator = Coordinator(Rules(least, most, 1, **rules))
        self.coordinator.start(now=0.0)
        self.roll_call = RollCall(self.coordinator)
        self.written = []

    def ready(self, node, *, now, cycle=-1, host="", **more):
        description = NodeDescription(host or f"host{node}", "a", 1, 2, given=more.pop("given", GIVEN), **more)
        message = Message(node, MessageKind.READY, cycle, "", description)
        decisions = self.coordinator.received(message, now=now)
        self.roll_call.joined(node, now=now)
        return self.write(decisions, now)

    def lost(self, node, *, now):
        return self.write(self.coordinator.lost(node, "vanished", now=now), now)

    def tick(self, *, now):
        self.roll_call.tick(now=now)
        return self.write(self.coordinator.tick(now=now), now)

    def write(self, decisions, now):
        return said(self.roll_call.decided(decisions, now=now))


def said(decisions):
    """Who logs what; of other decisions their kind."""
    notes = (DecisionKind.NOTE, DecisionKind.WARNING)
    return [
        ([member.node for member in each.members], each.reason) if each.kind in notes else each.kind
        for each in decisions
    ]


def test_every_10_s_all_that_wait_say_who_has_joined_and_how_many_are_missing():
    job = Job(least=3)
    assert job.ready(0, now=0.0) == []
    assert job.ready(1, now=3.0) == []
    assert job.roll_call.deadline == 10.0
    assert job.tick(now=9.9) == []
    line = "waiting for nodes since {} s: 2 of 3 have joined (host0, host1); 1 more needed; the job ends after 60 s"
    assert job.tick(now=10.0) == [([0, 1], line.format(10))]
    assert job.tick(now=10.1) == []
    assert job.tick(now=20.0) == [([0, 1], line.format(20))]
    assert job.ready(2, now=21.0) == [DecisionKind.RUN]
    assert job.roll_call.deadline == math.inf
    assert job.tick(now=30.0) == []


def test_a_node_without_a_fixed_rank_is_compared_with_no_other():
    """Many nodes join at a time: what is done for one must not grow with their number."""

    class Walked(dict):
        walks = 0

        def items(self):
            self.walks += 1
            return super().items()

    class Described(Coordinator):
        descriptions = Walked()

    coordinator = Described(Rules(100, 100, 1))
    roll_call = RollCall(coordinator)
    for node in range(100):
        coordinator.descriptions[node] = NodeDescription(f"host{node}", "a", 1, 2)
        roll_call.joined(node, now=0.0)
    assert coordinator.descriptions.walks == 0


def test_of_many_nodes_that_differ_some_are_named_at_a_time_and_none_after_the_end():
    """A value of etcd is bounded."""
    job = Job(least=500, most=500)
    for node in range(450):
        job.ready(node, now=0.0, given=(("--max-restarts", "5"),))
    assert [len(job.tick(now=float(at))) for at in (1, 2)] == [200, 200]
    assert job.roll_call.deadline == 3.0
    for node in range(450, 750):
        job.coordinator.received(Message(node, MessageKind.LEFT, -1, ""), now=2.0)
        job.ready(node, now=2.0, given=(("--max-restarts", "5"),))
    decisions = job.write(job.coordinator.abandon(75, "x"), 2.5)
    assert (len(decisions), decisions[-1], job.roll_call.deadline) == (201, DecisionKind.END, math.inf)


def test_hosts_that_slurm_has_named_are_missed_by_name():
    job = Job(least=3, most=3, expected_hosts=("host0", "host1", "host2"))
    job.ready(0, host="host0.cluster", now=0.0)
    ((_, line),) = job.tick(now=10.0)
    assert "1 of 3 have joined (host0.cluster); missing: host1, host2; the job ends" in line


def test_of_more_hosts_than_needed_those_that_have_not_joined_are_named():
    job = Job(expected_hosts=("host0", "host1", "host2"))
    job.ready(0, now=0.0)
    ((_, line),) = job.tick(now=10.0)
    assert "1 of 2 have joined (host0); 1 more needed, not joined: host1, host2; the job ends" in line


def test_after_a_loss_the_host_of_the_last_cycle_is_missed():
    job = Job(most=2)
    assert [*job.ready(0, now=0.0), *job.ready(1, now=0.0)] == [DecisionKind.RUN]
    assert job.lost(1, now=5.0) == [DecisionKind.LOST, DecisionKind.STOP]
    assert job.ready(0, cycle=0, now=6.0) == []
    ((nodes, line),) = job.tick(now=16.0)
    assert (nodes, line.partition(";")[2]) == ([0], " missing: host1; the job ends after 60 s")


def test_spares_say_so_in_each_cycle_and_when_they_join():
    job = Job(least=1, most=2, last_call_timeout=1.0)
    job.ready(0, now=0.0)
    assert job.ready(1, now=0.0) == [([1], "joined as a spare: cycle 0 runs on host0"), DecisionKind.RUN]
    assert job.ready(2, now=5.0) == []
    assert job.roll_call.deadline == 6.0
    assert job.tick(now=6.0) == [([2], "joined as a spare: cycle 0 runs on host0")]
    assert job.ready(2, now=7.0) == []
    note, *_, run = job.lost(0, now=8.0)
    assert (note, run) == (([2], "joined as a spare: cycle 1 runs on host1"), DecisionKind.RUN)


def test_a_node_whose_values_are_dropped_is_told_once_and_both_values_are_named():
    job = Job()
    job.ready(0, now=0.0)
    counts = "host0 runs the coordinator, and what it was given counts"
    other = (("--nnodes", "2:3"), ("--max-restarts", "5"), ("--of-a-later-version", "1"))
    assert job.ready(1, given=other, now=0.5) == [
        ([1], f"host1 was given --max-restarts 5; {counts}: --max-restarts 1"),
        DecisionKind.RUN,
    ]
    assert job.ready(1, given=other, cycle=0, now=5.0) == [DecisionKind.STOP]


def test_another_command_is_told_and_what_differs():
    job = Job(command="train.py --lr 0.1 --node_rank 0 --seed 1")
    job.ready(0, command="train.py --lr 0.1 --node_rank 0 --seed 1", now=0.0)
    line, run = job.ready(1, command="train.py --lr 0.1 --node_rank 1 --seed 1", now=0.0)
    assert run is DecisionKind.RUN
    assert line[1].startswith("host1 runs another command than host0: '--node_rank 1' instead of '--node_rank 0';")


def test_nothing_is_written_after_the_end_of_the_job():
    job = Job(least=2, most=2)
    job.ready(0, now=0.0)
    assert job.tick(now=60.0)[-1] is DecisionKind.END
    assert job.ready(1, given=(("--max-restarts", "7"),), now=61.0) == []
    assert job.tick(now=100.0) == []
    assert job.roll_call.deadline == math.inf


def test_a_successor_knows_the_hosts_of_the_cycle():
    job = Job(most=2)
    job.ready(0, now=0.0)
    job.ready(1, now=0.0)
    state = job.coordinator.state(now=1.0)
    job.coordinator = Coordinator.from_state(job.coordinator.rules, state, now=1.0)
    job.roll_call = RollCall(job.coordinator)
    job.lost(1, now=2.0)
    job.ready(0, cycle=0, now=3.0)
    ((_, line),) = job.tick(now=13.0)
    assert "missing: host1" in line


@pytest.mark.parametrize(
    ("command", "other", "difference"),
    [
        ("a.py --lr 1", "b.py --lr 1", ("a.py", "b.py")),
        ("a.py --lr 1", "a.py --lr 1 --more", ("", "--more")),
        ("a.py -v --lr 1 x", "a.py -v --lr 2 x", ("-v --lr 1", "-v --lr 2")),
        ("a.py 'x y' 1", "a.py 'x z' 1", ("'x y'", "'x z'")),
        ("a.py 'cut", "a.py 'off", ("''\"'\"'cut'", "''\"'\"'off'")),
    ],
)
def test_the_difference_of_two_commands(command, other, difference):
    assert command_difference(command, other) == difference


def test_of_many_hosts_the_first_are_named():
    assert (
        named(f"host{number}" for number in range(9)) == ", ".join(f"host{each}" for each in range(8)) + " and 1 more"
    )


def test_notes_survive_the_wire():
    job = Job()
    job.ready(0, command="a", now=0.0)
    description = job.coordinator.descriptions[0]
    assert NodeDescription.from_json(description.to_json()) == description
    note = Decision(DecisionKind.WARNING, 3, "text", members=())
    assert Decision.from_json(note.to_json()) == note


def test_a_missing_and_a_doubled_node_rank_are_named():
    job = Job(most=2, node_ranks=2)
    job.ready(0, now=0.0, order=1)
    job.ready(1, now=0.0, order=1)
    doubled, waiting = job.tick(now=10.0)
    assert doubled == ([1, 0], "host1 has --node-rank 1 like host0, and can only take its place")
    assert "(host0, host1); missing: --node-rank 0; host0, host1 have --node-rank 1; the job ends" in waiting[1]


def test_nodes_that_have_no_fixed_node_rank_are_not_each_others_substitutes():
    """As launchers that were given another rendezvous backend."""
    job = Job(least=3, most=3, node_ranks=3, given=(("--rdzv-backend", "static"),))
    job.ready(0, now=0.0, order=0, given=(("--rdzv-backend", "static"),))
    for node, order in ((1, -1), (2, -1), (3, 7), (4, 7)):
        job.ready(node, now=0.0, order=order, given=(("--rdzv-backend", "c10d"),))
    *differences, (_, waiting) = job.tick(now=10.0)
    counts = "host0 runs the coordinator, and what it was given counts: --rdzv-backend static"
    assert differences == [([node], f"host{node} was given --rdzv-backend c10d; {counts}") for node in range(1, 5)]
    assert "; missing: --node-rank 1-2; without --node-rank 0-2: host1, host2, host3, host4; the job ends" in waiting
