"""Which nodes take part in a cycle, and in which order of ranks: segments of NVLink domains, spares, the nodes kept."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, strategies as st
from nvrx_launcher.rendezvous import coordinator
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.messages import DecisionKind, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import MIN_HEALTHY, Rules
from nvrx_launcher.rendezvous.placement import NAMED, change, choose, named, usable
from nvrx_launcher.rendezvous.roll_call import RollCall


def described(host, domain="", *, order=-1, workers=8):
    return NodeDescription(f"host{host:02}", f"10.0.0.{host}", 29500, workers, order, domain=domain)


def made_of(domains, *, orders=None):
    """One node for each letter, in its domain; `-` has none."""
    orders = range(len(domains)) if orders is None else orders
    return {
        node: described(node, domain.strip("-"), order=order)
        for node, (domain, order) in enumerate(zip(domains, orders, strict=True))
    }


def started(rules, nodes, arrivals=None):
    """A coordinator whose nodes have joined in an order, and its decision to run."""
    made = Coordinator(rules)
    made.start(now=0.0)
    for node in arrivals or nodes:
        decisions = made.received(Message(node, MessageKind.READY, description=nodes[node]), now=0.0)
    made.check()
    return made, decisions


def restarted(made, nodes, *, now=2.0):
    """What is decided when all nodes of the cycle have stopped; the coordinator goes on from its state."""
    made = Coordinator.from_state(
        made.rules, CoordinatorState.from_json(json.loads(json.dumps(made.state(now=now).to_json()))), now=now
    )
    decisions = ()
    for node in sorted(made.active):
        decisions = made.received(Message(node, MessageKind.READY, made.cycle, description=nodes[node]), now=now)
    made.check()
    return made, decisions


def hosts(decision):
    return [member.node for member in decision.members]


class Number(int):
    """A node's number that counts the comparisons with others."""

    compared = 0

    def __eq__(self, other):
        Number.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_to_name_who_has_changed_does_not_compare_each_node_with_each():
    nodes = {Number(number): described(number) for number in range(100)}
    former = [Number(number) for number in range(50, 150)]
    nodes |= {node: described(node) for node in former}
    assert change(tuple(nodes), nodes, frozenset(former), []).startswith("; left: none; joined: host00, ")
    assert change(tuple(former[:90]), nodes, frozenset(former), []).endswith("; joined: none")
    assert Number.compared < 1000


def test_segments_are_looked_for_once_there_are_enough_nodes(monkeypatch):
    """Many nodes join at a time: what is done for one must not grow with their number."""
    counted = []

    def count(nodes, *rules):
        counted.append(len(nodes))
        return usable(nodes, *rules)

    monkeypatch.setattr(coordinator, "usable", count)
    nodes = made_of("AABBCC")
    _, (decision,) = started(Rules(6, 6, 0, segment=2), nodes)
    assert (decision.kind, hosts(decision), counted) == (DecisionKind.RUN, [*range(6)], [6])


@pytest.mark.parametrize("arrivals", [range(8), range(7, -1, -1), (3, 7, 6, 0, 1, 5, 2, 4)])
def test_six_of_eight_h100_nodes_run_and_two_are_spares(arrivals):
    """The first example of the usage guide: nodes 0 to 5 have ranks 0 to 47, nodes 6 and 7 are spares."""
    nodes = {number: described(node, order=node) for number, node in enumerate(arrivals)}
    _, (decision,) = started(Rules(6, 8, 3), nodes)
    assert [nodes[node].order for node in hosts(decision)] == [0, 1, 2, 3, 4, 5]
    assert (decision.world_size, [each.first_rank for each in decision.members]) == (48, [0, 8, 16, 24, 32, 40])
    assert decision.reason == "6 nodes, 2 spare"


def test_eight_of_twelve_nodes_run_in_two_segments_of_four():
    """The second example of the usage guide: two complete segments, four spares, which replace a lost node."""
    nodes = made_of("AAAAAABBBBBB")
    made, (decision,) = started(Rules(8, 12, 3, segment=4), nodes)
    assert hosts(decision) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert decision.reason == "8 nodes in segments of 4, 4 spare"
    made.lost(7, "its lease has expired", now=1.0)
    made, (decision,) = restarted(made, nodes)
    assert hosts(decision) == [0, 1, 2, 3, 6, 8, 9, 10]
    assert decision.reason == (
        "8 nodes in segments of 4, 3 spare; left: host07 (its lease has expired); joined: host10"
    )


def test_a_segment_that_lacks_a_node_is_replaced_by_one_of_another_domain():
    nodes = made_of("AAAABBBBCCCC")
    made, (decision,) = started(Rules(8, 12, 3, segment=4), nodes)
    assert hosts(decision) == [0, 1, 2, 3, 4, 5, 6, 7]
    made.lost(1, "its lease", now=1.0)
    made, (decision,) = restarted(made, nodes)
    assert hosts(decision) == [4, 5, 6, 7, 8, 9, 10, 11]
    lacks = "a spare now: its segment lacks a node"
    assert decision.reason == (
        f"8 nodes in segments of 4, 3 spare; left: host00 ({lacks}), host01 (its lease), host02 ({lacks}), "
        f"host03 ({lacks}); joined: host08, host09, host10, host11"
    )


def test_ranks_are_consecutive_in_a_domain_whose_nodes_alternate():
    _, (decision,) = started(Rules(4, 6, 0, segment=2), made_of("ABABAB"))
    assert hosts(decision) == [0, 2, 1, 3]


def test_a_domain_gives_all_its_complete_segments_before_the_next_one():
    _, (decision,) = started(Rules(6, 9, 0, segment=2), made_of("AABBBBBCC", orders=(8, 7, 6, 5, 4, 3, 2, 1, 0)))
    assert hosts(decision) == [8, 7, 6, 5, 4, 3]


def test_a_node_without_a_domain_is_a_segment_of_its_own():
    assert usable(made_of("--AA-"), 1) == 5
    assert (usable(made_of("--AA-"), 2), usable(made_of("--AA-"), None)) == (2, 5)
    assert choose(made_of("--AA-"), (), segment=1, most=5) == (0, 1, 2, 3, 4)


def test_under_min_healthy_all_complete_segments_take_part():
    rules = Rules(2, 5, 0, restart_policy=MIN_HEALTHY, segment=2)
    _, (decision,) = started(rules, made_of("AABBA"))
    assert hosts(decision) == [0, 1, 2, 3]


def test_incomplete_segments_are_waited_for_and_named():
    rules = Rules(4, 8, 0, segment=2, join_timeout=60.0)
    made, nodes = Coordinator(rules), made_of("AABC-")
    made.start(now=0.0)
    calls = RollCall(made)
    for node, each in nodes.items():
        assert made.received(Message(node, MessageKind.READY, description=each), now=0.0) == ()
    calls.decided((), now=0.0)
    calls.tick(now=10.0)
    (note,) = calls.decided((), now=10.0)
    lack = "2 of them are in complete segments of 2 nodes of one NVLink domain; without a ClusterUUID: host04"
    assert lack in note.reason
    (end,) = made.tick(now=60.0)
    joined = "['host00', 'host01', 'host02', 'host03', 'host04']"
    assert (end.kind, end.code) == (DecisionKind.END, 1)
    assert end.reason == f"5 of 4 nodes have joined in 60 s: {joined}; {lack}"


def test_the_maximum_of_nodes_without_enough_segments_begins_no_cycle():
    made, decisions = started(Rules(2, 2, 0, segment=2), made_of("AB"))
    assert decisions == ()
    (decision,) = made.received(Message(2, MessageKind.READY, description=described(2, "B")), now=1.0)
    assert hosts(decision) == [1, 2]


def test_a_node_that_is_lost_before_the_next_cycle_begins_is_named():
    nodes = made_of("--")
    made, _ = started(Rules(2, 2, 1), nodes)
    made.received(Message(0, MessageKind.FAILED, 0, "rank 0 has failed"), now=1.0)
    made, (decision,) = restarted(made, nodes)
    assert decision.reason == "2 nodes, 0 spare"
    made.lost(0, "its lease", now=3.0)
    made.received(Message(1, MessageKind.READY, 1, description=nodes[1]), now=3.0)
    made.lost(1, "SIGTERM\nand a traceback", now=4.0)
    made.received(Message(2, MessageKind.READY, description=described(2)), now=5.0)
    (decision,) = made.received(Message(3, MessageKind.READY, description=described(3)), now=5.0)
    assert decision.reason == "2 nodes, 0 spare; left: host00 (its lease), host01 (SIGTERM); joined: host02, host03"


def test_a_node_less_is_said_where_nobody_takes_its_place():
    nodes = made_of("---")
    made, _ = started(Rules(1, 3, 0, restart_policy=MIN_HEALTHY), nodes)
    made.lost(0, "its lease", now=1.0)
    for node in (1, 2):
        made.received(Message(node, MessageKind.UNHEALTHY, 0, "rank 1 has failed"), now=2.0)
    made, (decision,) = restarted(made, nodes)
    assert decision.reason == "2 nodes, 0 spare; left: host00 (its lease); joined: none"


def test_many_hosts_are_counted():
    assert named(f"host{number}" for number in range(NAMED + 2)).endswith("host7 and 2 more")


def check_choice(nodes, former, size, most):
    """Check what holds of every choice; by trying all choices where there are few."""
    chosen = choose(nodes, former, segment=size, most=most)
    assert len(chosen) == len(set(chosen)) == min(most // size * size, usable(nodes, size))
    starts = range(0, len(chosen), size)
    kinds = [{nodes[node].domain or node for node in chosen[start : start + size]} for start in starts]
    assert all(len(kind) == 1 for kind in kinds), "ranks of a segment are consecutive, and of one domain"
    runs = [kind for kind, _ in itertools.groupby(kinds)]
    assert len(runs) == len({each for kind in runs for each in kind}), "a domain's segments follow each other"
    for _, run in itertools.groupby(chosen, key=lambda node: nodes[node].domain or node):
        orders = [nodes[node].order for node in run]
        assert orders == sorted(orders), "ranks follow the infrastructure in a domain"
    return chosen


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_other_choice_keeps_more_nodes_of_the_last_cycle(size):
    """All assignments of five nodes to domains, all last cycles: compared with all sets of nodes that could run."""
    for domains in itertools.product("AB-", repeat=5):
        nodes = made_of(domains)
        for most in range(size, usable(nodes, size) + 1, size):
            possible = [
                set(subset) for subset in itertools.combinations(nodes, most)
                if usable({node: nodes[node] for node in subset}, size) == most
            ]  # fmt: skip
            for former in itertools.chain.from_iterable(itertools.combinations(nodes, k) for k in range(6)):
                chosen = set(check_choice(nodes, former, size, most))
                assert chosen in possible
                assert len(chosen & set(former)) == max(len(each & set(former)) for each in possible)


@st.composite
def clusters(draw):
    """Many nodes in domains, some without one, in any order of the infrastructure, and a last cycle of theirs."""
    size = draw(st.integers(1, 18))
    domains = draw(st.lists(st.sampled_from(["-", *"ABCDEFGH"]), min_size=size, max_size=200))
    orders = draw(st.permutations(range(len(domains))))
    nodes = made_of(domains, orders=orders)
    former = draw(st.frozensets(st.sampled_from(sorted(nodes)), max_size=len(nodes)))
    return nodes, former, size, draw(st.integers(size, max(size, len(domains))))


@given(clusters(), st.randoms(use_true_random=False))
def test_a_choice_depends_on_the_nodes_and_not_on_the_order_in_which_they_are_listed(cluster, dice):
    nodes, former, size, most = cluster
    chosen = check_choice(nodes, former, size, most)
    listed = list(nodes)
    dice.shuffle(listed)
    assert choose({node: nodes[node] for node in listed}, former, segment=size, most=most) == chosen
    assert check_choice(nodes, frozenset(chosen), size, most) == chosen, "a cycle without a loss keeps all its ranks"


@given(clusters())
def test_a_lost_node_costs_its_own_place_or_that_of_its_segment(cluster):
    """Where enough segments are left, all nodes stay but the lost one, or but those of one incomplete segment."""
    nodes, former, size, most = cluster
    chosen = choose(nodes, former, segment=size, most=most)
    for lost in chosen[:3]:
        left = {node: each for node, each in nodes.items() if node != lost}
        again = choose(left, frozenset(chosen) - {lost}, segment=size, most=most)
        assert len(set(chosen) - set(again)) <= size


def fixed(orders):
    return {node: described(node, order=order) for node, order in enumerate(orders)}


@pytest.mark.parametrize(
    ("orders", "lacks"),
    [
        ((1, 0), ""),
        ((0, 0), "missing: --node-rank 1; host00, host01 have --node-rank 0"),
        ((5, 0), "missing: --node-rank 1; without --node-rank 0-1: host00"),
        ((-1, 5, -1, 1), "missing: --node-rank 0; without --node-rank 0-1: host00, host01, host02"),
    ],
)
def test_each_fixed_rank_must_be_that_of_a_node(orders, lacks):
    nodes = fixed(orders)
    made, decisions = started(Rules(2, 2, 1, node_ranks=2, join_timeout=60.0), nodes)
    if not lacks:
        assert hosts(decisions[0]) == [1, 0]
        return
    assert decisions == ()
    (end,) = made.tick(now=60.0)
    assert end.kind is DecisionKind.END
    assert end.reason.endswith(f"; {lacks}")


def test_a_second_node_of_a_fixed_rank_takes_its_place_when_the_first_is_lost():
    nodes = fixed((0, 1, 1))
    made, _ = started(Rules(2, 2, 1, node_ranks=2), nodes, arrivals=(0, 2, 1))
    assert made.active == {0, 2}
    made.lost(2, "vanished", now=1.0)
    made, decisions = restarted(made, nodes)
    assert hosts(decisions[0]) == [0, 1]
    assert choose(nodes, (0, 2), segment=None, most=2, node_ranks=2) == (0, 2)
