"""The record of a fault, on the wire and for people."""

import json

import pytest

from nvrx_core.events.schema import EVENTS
from nvrx_core.fault.record import MAX_BYTES, FaultRecord
from nvrx_core.inprocess.attribution import Interruption, InterruptionRecord

FAULT = FaultRecord(
    initial_rank=3, rank=1, interruption="EXCEPTION", message="ValueError: no", error_type="ValueError",
    origin="train.py:7", occurred=1.5, announced=1.6, wall=7.0, boot_id="b", host="h", pid=42,
)  # fmt: skip


def test_a_fault_survives_the_wire():
    assert FaultRecord.from_data(json.loads(FAULT.encode())) == FAULT


def test_unknown_fields_are_ignored_and_the_others_have_defaults():
    least = {"initial_rank": 3, "rank": 1, "interruption": "TERMINATED", "of_a_later_version": [1]}
    assert FaultRecord.from_data(least) == FaultRecord(initial_rank=3, rank=1, interruption="TERMINATED")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"initial_rank": 1, "rank": 1, "interruption": "SURPRISE"},
        {"initial_rank": "1", "rank": 1, "interruption": "EXCEPTION"},
        {"initial_rank": 1, "rank": 1, "interruption": "TERMINATED", "exit_code": 256},
    ],
)
def test_a_record_without_kind_or_rank_is_refused(data):
    with pytest.raises(ValueError, match="not a"):
        FaultRecord.from_data(data)


def test_the_record_stays_small():
    long = FaultRecord(initial_rank=0, rank=0, interruption="EXCEPTION", message="m" * 10**6, origin="o" * 10**6)
    assert len(long.encode()) < MAX_BYTES


def test_the_record_in_the_terms_of_the_wrapper():
    assert FAULT.record == InterruptionRecord(1, Interruption.EXCEPTION)


def test_the_text_of_a_fault():
    assert str(FAULT) == "EXCEPTION on rank 1 (initial rank 3, h pid 42): ValueError: no at train.py:7"
    assert str(FaultRecord(initial_rank=3, rank=1, interruption="TERMINATED", message="gone")).endswith("): gone")


def test_the_fields_of_the_fault_event():
    event_fields = FAULT.event_fields()
    assert event_fields.keys() == set(EVENTS["fault"])
    assert event_fields.pop("faulty_initial_rank") == FAULT.initial_rank
    assert event_fields == {name: getattr(FAULT, name) for name in event_fields}


def test_a_kill_of_the_kernels_is_named():
    killed = FaultRecord(
        initial_rank=3, rank=1, interruption="TERMINATED", message="process ended by SIGKILL"
    ).of_memory()
    assert killed.category == "out of memory"
    assert str(killed).startswith("TERMINATED (out of memory) on rank 1")
    assert FaultRecord.from_data(json.loads(killed.encode())) == killed
