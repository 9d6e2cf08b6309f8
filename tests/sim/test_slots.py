"""The simulation's store and the shipped `RoundOperations` do the same with any order of actions."""

from hypothesis import given, strategies as st

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision
from nvrx_core.inprocess.protocol.round import (
    Announce,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    Publish,
    PutArrival,
    ReadArrivals,
)
from tests.harness.sim import record, slots

MEMBERS = frozenset({0, 1})
FAULTS = [FaultRecord(initial_rank=member, rank=member, interruption="EXCEPTION") for member in MEMBERS]
ACTIONS = (
    *map(Announce, FAULTS), CloseCompleted(), CountCompletion(), CountArrival(), ReadArrivals(MEMBERS),
    *(PutArrival(Arrival(initial_rank=member, rank=member, status=status, fault=FAULTS[member]))
      for member in MEMBERS for status in (ArrivalStatus.ALIVE, ArrivalStatus.DEAD)),
    *(Publish(RoundDecision(iteration=0, lost=lost, terminated=lost, cause=FAULTS[0], culprits=(0,), step=-1))
      for lost in ((), (1,))),
    slots.SayWhere("here:1"), slots.SayWhere(""), slots.LookUp(),
)  # fmt: skip


@given(st.lists(st.sampled_from(ACTIONS), max_size=15))
def test_both_stores_answer_the_same(actions):
    ours, known = slots.Slots(), record.Record()
    for action in actions:
        known, answer = record.perform(known, action)
        assert ours.perform(action) == answer
    assert (ours.event, ours.arrived, ours.completed, ours.decision) == known[0:1] + known[2:5]
    assert ours.arrivals == dict(known.arrivals)
    assert ours.master == {"": None, "-": False}.get(known.master, True)
