"""What a round decides: who is lost, who is to blame, the same bytes for everyone."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from nvrx_core.fault.blame import RankProgress
from nvrx_core.fault.record import LATE_COMPLETION, FaultRecord
from nvrx_core.inprocess.protocol.decision import (
    Arrival,
    ArrivalStatus,
    RoundDecision,
    decide,
    decode_event,
    encode_completion,
)

ALIVE, LEAVING, DEAD = ArrivalStatus.ALIVE, ArrivalStatus.LEAVING, ArrivalStatus.DEAD


def fault(member, kind="EXCEPTION", message="broken", error_type=""):
    return FaultRecord(initial_rank=member, rank=member, interruption=kind, message=message, error_type=error_type)


def arrivals(*all_of_them):
    """By (status, own fault, progress, stalled, step), all optional."""
    made = {}
    for member, given_ in enumerate(all_of_them):
        status, own, progress, stalled, step = (*given_, *(ALIVE, None, None, False, -1)[len(given_) :])
        made[member] = Arrival(
            initial_rank=member, rank=member if status is not DEAD else -1, status=status,
            world_size=len(all_of_them) if status is not DEAD else 0, fault=own, step=step, progress=progress,
            stalled=stalled,
        )  # fmt: skip
    return made


def blame(event, *all_of_them):
    return decide(3, arrivals(*all_of_them), event).culprits


def test_who_is_not_alive_is_lost_and_their_places_are_terminated():
    decision = decide(3, arrivals((ALIVE,), (LEAVING,), (ALIVE,), (DEAD,)), fault(3, "TERMINATED"))
    assert (decision.iteration, decision.lost, decision.terminated) == (3, (1, 3), (1, 3))


def test_places_are_those_of_the_iteration_and_not_of_the_job():
    held = {0: (0, ALIVE), 5: (1, DEAD), 6: (2, ALIVE)}
    made = {m: Arrival(initial_rank=m, rank=r, status=s, world_size=3) for m, (r, s) in held.items()}
    decision = decide(0, made, None)
    assert (decision.lost, decision.terminated) == ((5,), (1,))


def test_nobody_may_be_left():
    decision = decide(0, arrivals((DEAD,), (LEAVING,)), fault(0, "TERMINATED"))
    assert (decision.lost, decision.terminated) == ((0, 1), ())


def test_the_highest_step_counts():
    assert decide(0, arrivals((ALIVE, None, None, False, 7), (ALIVE, None, None, False, 9)), None).step == 9
    assert decide(0, {}, None).step == -1


# Who is to blame


def test_the_event_is_the_cause():
    decision = decide(0, arrivals((), ()), fault(1))
    assert (decision.cause, decision.culprits) == (fault(1), (1,))


def test_without_event_and_faults_there_is_no_cause():
    decision = decide(-1, arrivals((), ()), None)
    assert (decision.cause, decision.culprits) == (None, ())


def test_two_faults_at_once_have_two_culprits():
    assert blame(fault(1), (ALIVE,), (ALIVE, fault(1)), (DEAD, fault(2, "TERMINATED"))) == (1, 2)


@pytest.mark.parametrize(
    ("message", "error_type"),
    [
        ("gloo/transport/tcp/pair.cc: Connection closed by peer", "RuntimeError"),
        ("x", "torch.distributed.DistBackendError"),
    ],
)
def test_a_broken_collective_is_a_symptom_of_what_broke_it(message, error_type):
    symptom, death = fault(0, message=message, error_type=error_type), fault(1, "TERMINATED")
    decision = decide(0, arrivals((ALIVE, symptom), (DEAD, death)), symptom)
    assert (decision.cause, decision.culprits) == (death, (1,))


def test_a_symptom_with_no_other_cause_is_the_cause():
    symptom = fault(0, message="gloo: timed out")
    decision = decide(0, arrivals((ALIVE, symptom), ()), symptom)
    assert (decision.cause, decision.culprits) == (symptom, (0,))


def test_a_rank_that_nobody_waits_for_is_not_to_blame_for_a_hang_elsewhere():
    here, there = RankProgress(collectives=9), RankProgress(collectives=8)
    assert blame(fault(0, "SOFT_TIMEOUT"), (ALIVE, None, here, True), (ALIVE, None, there), (DEAD,), ()) == (1,)


def test_a_dead_rank_has_no_progress():
    stalled, here = fault(0, "SOFT_TIMEOUT"), RankProgress(collectives=9)
    assert blame(stalled, (ALIVE, None, here, True), (ALIVE, None, here), (DEAD, None, RankProgress())) == (0,)


def test_nobody_is_to_blame_when_all_stood_still_alike():
    here = RankProgress(collectives=9)
    assert blame(fault(0, "SOFT_TIMEOUT"), (ALIVE, None, here, True), (ALIVE, None, here, True)) == ()


def test_a_late_completion_is_the_fault_of_who_has_not_completed():
    told = fault(0, error_type=LATE_COMPLETION)
    ranks = {rank: replace(each, completed=rank in (0, 2)) for rank, each in arrivals((), (), (), ()).items()}
    assert decide(3, ranks, told).culprits == (1, 3)
    assert decide(3, ranks, told).cause == told
    ranks[1] = replace(ranks[1], fault=fault(1))
    assert decide(3, ranks, told).culprits == (1,), "a failure outweighs it"


def test_a_failure_outweighs_a_stall():
    stalled = fault(0, "SOFT_TIMEOUT")
    assert blame(stalled, (ALIVE, None, RankProgress(1), True), (ALIVE, fault(1), RankProgress(2))) == (1,)


@pytest.mark.parametrize(("message", "culprit"), [("gloo: Timed out waiting 5 ms", 1), ("gloo: Connection reset", 0)])
def test_a_collective_that_timed_out_is_the_fault_of_who_did_not_come(message, culprit):
    symptom = fault(0, message=message)
    arrived, missing = (ALIVE, symptom, RankProgress(collectives=9)), (ALIVE, None, RankProgress(collectives=8))
    assert blame(symptom, arrived, missing) == (culprit,)
    assert blame(symptom, arrived, arrived) == (0,)


# On the wire

FAULTS = st.builds(
    FaultRecord, initial_rank=st.integers(0, 9), rank=st.integers(-1, 9), interruption=st.just("EXCEPTION"),
    message=st.text(max_size=20), occurred=st.floats(0, 1e9),
)  # fmt: skip
COUNTS = st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9)), max_size=3).map(tuple)
PROGRESS = st.builds(RankProgress, st.integers(0, 9), st.integers(0, 1), st.integers(0, 9), st.integers(0, 9), COUNTS)
ARRIVALS = st.builds(
    Arrival, initial_rank=st.integers(0, 9), rank=st.integers(-1, 9), status=st.sampled_from(ArrivalStatus),
    world_size=st.integers(0, 9), fault=st.none() | FAULTS, step=st.integers(-1, 99),
    progress=st.none() | PROGRESS, stalled=st.booleans(), completed=st.booleans(),
)  # fmt: skip


@given(ARRIVALS)
def test_an_arrival_survives_the_wire(one):
    assert Arrival.decode(one.encode()) == Arrival.decode(one.encode().encode()) == one


@given(st.lists(ARRIVALS, max_size=5), st.none() | FAULTS)
def test_a_decision_survives_the_wire_whatever_arrived(all_of_them, event):
    decision = decide(1, {one.initial_rank: one for one in all_of_them}, event)
    assert RoundDecision.decode(decision.encode()) == decision
    assert list(decision.lost) == sorted(set(decision.lost))


def test_the_order_of_arrivals_does_not_change_the_bytes():
    made = arrivals((ALIVE,), (DEAD,), (LEAVING,))
    backwards = dict(reversed(made.items()))
    assert decide(1, made, fault(1)).encode() == decide(1, backwards, fault(1)).encode()


def test_an_event_is_a_fault_or_the_completion():
    assert decode_event(fault(1).encode()) == fault(1)
    assert decode_event(encode_completion()) is None


@pytest.mark.parametrize("text", ["", "no", b"\xff", "[]", "7", "[" * 100_000])
def test_what_is_no_object_is_refused(text):
    for decode in (Arrival.decode, RoundDecision.decode, decode_event):
        with pytest.raises(ValueError, match=r"not JSON|not a JSON object"):
            decode(text)


def test_an_event_that_is_no_fault_is_refused():
    with pytest.raises(ValueError, match="not a fault record"):
        decode_event("{}")


def offering(member, rank, endpoint="", status=ArrivalStatus.ALIVE, *, fills_gaps=False):
    return Arrival(
        initial_rank=member, rank=rank, status=status, world_size=4, endpoint=endpoint, fills_gaps=fills_gaps
    )


@pytest.mark.parametrize(("fills_gaps", "leader", "rendezvous"), [(False, 1, ("b", 2)), (True, 3, ("::1", 4))])
def test_the_decision_tells_who_becomes_rank_0_and_where_it_hosts(fills_gaps, leader, rendezvous):
    offers = [("a:1", ArrivalStatus.DEAD), ("b:2",), ("c:3",), ("[::1]:4",)]
    arrivals = {rank: offering(rank, rank, *offer, fills_gaps=fills_gaps) for rank, offer in enumerate(offers)}
    assert Arrival.decode(arrivals[3].encode()) == arrivals[3]
    decision = RoundDecision.decode(decide(0, arrivals, None).encode())
    assert (decision.leader, decision.rendezvous) == (leader, rendezvous)


def test_a_leader_that_offers_no_endpoint_is_none():
    decision = decide(0, {0: offering(0, 0), 1: offering(1, 1, "b:2")}, None)
    assert (decision.leader, decision.rendezvous) == (-1, None)
    assert "endpoint" not in decision.encode()


@pytest.mark.parametrize("endpoint", ["nowhere", "host:0", "ho st:1", 7, ["host:1"], "h\u00f6st:1"])
def test_an_endpoint_that_is_none_is_refused(endpoint):
    data = json.loads(offering(0, 0).encode())
    with pytest.raises(ValueError, match=r"not |codec"):
        Arrival.decode(json.dumps({**data, "endpoint": endpoint}))
    data = json.loads(decide(0, {0: offering(0, 0)}, None).encode())
    with pytest.raises(ValueError, match=r"not |codec"):
        RoundDecision.decode(json.dumps({**data, "endpoint": endpoint}))


def exits(member, code, kind="BASE_EXCEPTION"):
    return replace(fault(member, kind), exit_code=code)


@pytest.mark.parametrize(
    ("event", "all_of_them", "code"),
    [
        (exits(1, 3), [(ALIVE,), (LEAVING, exits(1, 3))], 3),
        (exits(1, 3), [(LEAVING, exits(0, 4)), (LEAVING, exits(1, 3))], 3),
        (fault(0), [(ALIVE, fault(0)), (DEAD, exits(1, 137, "TERMINATED")), (LEAVING, exits(2, 5))], 5),
        (exits(1, 137, "TERMINATED"), [(ALIVE,), (DEAD, exits(1, 137, "TERMINATED")), (LEAVING, exits(2, 5))], 137),
        (fault(0), [(ALIVE, fault(0)), (LEAVING, exits(1, 6)), (LEAVING, exits(2, 5))], 6),
        (fault(0), [(ALIVE, fault(0)), (LEAVING, fault(1, "BASE_EXCEPTION"))], None),
        (exits(1, 3), [(ALIVE,), (ALIVE, exits(1, 3))], None),
    ],
    ids=["one", "the first", "announced by itself", "the cause", "the lowest", "no exit", "not lost"],
)
def test_the_exit_of_a_lost_rank_is_named(event, all_of_them, code):
    decision = decide(0, arrivals(*all_of_them), event)
    assert (decision.exit and decision.exit.exit_code) == code
    assert RoundDecision.decode(decision.encode()) == decision
    assert ("exit" in json.loads(decision.encode())) == (code is not None)


def test_the_newest_vote_that_a_living_rank_has_passed_is_told():
    """A later iteration outweighs a greater step; who is lost has taken its vote with it."""
    votes = [((0, 90), ALIVE), ((1, 5), ALIVE), ((), ALIVE), ((1, 6), DEAD)]
    made = {m: Arrival(initial_rank=m, rank=m, status=s, world_size=4, vote=v) for m, (v, s) in enumerate(votes)}
    decision = decide(1, {m: Arrival.decode(each.encode()) for m, each in made.items()}, None)
    assert RoundDecision.decode(decision.encode()).vote == (1, 5)


@pytest.mark.parametrize(("status", "vote"), [(ALIVE, ()), (DEAD, (0, 5))])
def test_where_a_living_rank_has_several_live_states_no_vote_is_told(status, vote):
    """It may have passed a newer vote of the one that the others tell of."""
    told = Arrival(initial_rank=0, rank=0, status=ALIVE, world_size=2, vote=(0, 5))
    several = Arrival(initial_rank=1, rank=1, status=status, world_size=2, several=True)
    made = {m: Arrival.decode(each.encode()) for m, each in enumerate((told, several))}
    assert decide(1, made, None).vote == vote


def test_a_job_without_live_states_sends_nothing_of_votes():
    made = arrivals((ALIVE,), (ALIVE,))
    assert "vote" not in made[0].encode()
    assert "several" not in made[0].encode()
    assert "vote" not in decide(1, made, None).encode()


@pytest.mark.parametrize("vote", [[1], [1, 2, 3], [1, "2"], {"step": 1}])
def test_a_vote_that_is_none_is_refused(vote):
    text = json.dumps({**json.loads(arrivals((ALIVE,))[0].encode()), "vote": vote})
    with pytest.raises(ValueError, match=r"not a"):
        Arrival.decode(text)
