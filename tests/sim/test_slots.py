"""The simulation's store and the shipped `RoundOperations` do the same in any order of operations."""

from hypothesis import given, strategies as st

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision
from tests.harness.sim import record
from tests.harness.sim.slots import Slots

MEMBERS = frozenset({0, 1})
FAULTS = [FaultRecord(initial_rank=member, rank=member, interruption="EXCEPTION") for member in MEMBERS]
ARRIVALS = [Arrival(initial_rank=member, rank=member, status=status, fault=FAULTS[member])
            for member in MEMBERS for status in (ArrivalStatus.ALIVE, ArrivalStatus.DEAD)]  # fmt: skip
DECISIONS = [RoundDecision(iteration=0, lost=lost, terminated=lost, cause=FAULTS[0], culprits=(0,), step=-1)
             for lost in ((), (1,))]  # fmt: skip
OPERATIONS = (
    *((Slots.announce, fault) for fault in FAULTS), (Slots.close_completed,), (Slots.count_completion,),
    (Slots.count_arrival,), (Slots.read_arrivals, MEMBERS), (Slots.look_up,),
    *((Slots.put_arrival, arrival) for arrival in ARRIVALS), *((Slots.publish, each) for each in DECISIONS),
    (Slots.say_where, "here:1"), (Slots.say_where, ""),
)  # fmt: skip


@given(st.lists(st.sampled_from(OPERATIONS), max_size=15))
def test_both_stores_answer_the_same(operations):
    ours, known = Slots(), record.Record()
    for operation, *args in operations:
        known, answer = record.perform(known, operation, *args)
        assert operation(ours, *args) == answer
    assert (ours.event, ours.arrived, ours.completed, ours.decision) == known[0:1] + known[2:5]
    assert ours.arrivals == dict(known.arrivals)
    assert ours.master == {"": None, "-": False}.get(known.master, True)
