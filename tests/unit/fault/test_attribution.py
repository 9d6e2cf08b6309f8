"""Interruption records, as text and back."""

import pytest

from nvrx_core.inprocess.attribution import Interruption, InterruptionRecord, format_interruption_records


@pytest.mark.parametrize("kind", Interruption)
def test_a_record_is_read_back_from_its_text(kind):
    record = InterruptionRecord(7, kind)
    assert str(record) == f"InterruptionRecord(rank=7, interruption=Interruption.{kind.name})"
    assert InterruptionRecord.from_str(str(record)) == record


@pytest.mark.parametrize(
    "text",
    ["", "InterruptionRecord(rank=x, interruption=Interruption.EXCEPTION)",
     "InterruptionRecord(rank=1, interruption=Interruption.SURPRISE)"],
)  # fmt: skip
def test_a_malformed_interruption_record_is_refused(text):
    with pytest.raises(ValueError, match="not an interruption record"):
        InterruptionRecord.from_str(text)


def test_records_are_grouped_by_kind():
    records = [
        InterruptionRecord(2, Interruption.TERMINATED),
        InterruptionRecord(3, Interruption.EXCEPTION),
        InterruptionRecord(1, Interruption.TERMINATED),
        InterruptionRecord(1, Interruption.TERMINATED),
    ]
    assert format_interruption_records(records) == "EXCEPTION on ranks [3], TERMINATED on ranks [1, 2]"
    assert not format_interruption_records([])
