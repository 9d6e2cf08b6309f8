"""What a rank reports of a hang, and what it costs a restart that is for something else: nothing in the store."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.call.hang_reporter import HangReporter
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.state import State
from nvrx_core.process import torch_calls
from nvrx_core.progress.page import Page, ProgressField, Stage
from nvrx_core.store.keys import StoreKeys


class Rank:
    """The only rank of a job, in round 0."""

    def __init__(self, page, *, shortest=0.0, stalled=True):
        self.page, self.written = page, []
        page.begin_round(0, 0, 1)
        page.enter(Stage.RUNNING)
        self.store = ControlStore(GuardedStore(dist.HashStore()), StoreKeys("job", 0, 0))
        self.reporter = HangReporter(
            State(rank=0, world_size=1),
            page,
            SimpleNamespace(write=lambda event, iteration, **fields: self.written.append((event, iteration, fields))),
            sample=SimpleNamespace(stalled=stalled),
            control_store=self.store,
            shortest=shortest,
        )

    def ends_by(self, interruption):
        """Let the round end; return the keys that are in the store besides its event."""
        self.store.rounds.announce(0, FaultRecord(initial_rank=0, rank=0, interruption=interruption))
        self.reporter.notice(0)
        self.reporter.finish()
        return self.store.store.store.num_keys() - 1


@pytest.fixture
def page():
    page = Page(1)
    yield page
    page.close()


@pytest.mark.parametrize("stalled", [True, False])
def test_a_soft_timeout_has_its_line_and_its_event(page, caplog, stalled):
    rank = Rank(page, stalled=stalled)
    assert rank.ends_by("SOFT_TIMEOUT") > 0
    ((event, iteration, fields),) = rank.written
    assert (event, iteration) == ("hang_verdict", 0)
    assert f"hang: {fields['sentence']}" in caplog.messages
    assert "test_hang_reporter.py" in fields["sentence"]


def test_a_round_that_ends_otherwise_has_none(page):
    rank = Rank(page)
    assert rank.ends_by("EXCEPTION") == 0
    assert not rank.written


def test_a_round_that_was_too_short_for_a_soft_timeout_asks_the_store_nothing(page):
    rank = Rank(page, shortest=1e6)
    assert rank.ends_by("SOFT_TIMEOUT") == 0


@pytest.mark.parametrize(("field", "value"), [(ProgressField.HANG_REPORTED, 1), (ProgressField.STAGE, Stage.UNWINDING)])
def test_a_rank_that_its_monitor_process_has_got_out_of_the_function_does_not_report_where_it_is_now(
    page, field, value
):
    rank = Rank(page)
    page[field] = value
    assert rank.ends_by("SOFT_TIMEOUT") == 0


def test_a_rank_that_has_completed_is_not_to_blame_by_itself(page):
    rank = Rank(page)
    page.enter(Stage.WAITING)
    assert rank.ends_by("SOFT_TIMEOUT") > 0
    assert rank.written[0][2]["ranks"] == ()


def test_what_fails_in_a_look_at_the_user_s_objects_costs_the_report_alone(page, monkeypatch, caplog):
    def fail(frames):
        raise RuntimeError("from __bool__ of a group")

    monkeypatch.setattr(torch_calls, "call_of", fail)
    rank = Rank(page)
    assert rank.ends_by("SOFT_TIMEOUT") == 0
    assert "initial rank 0 does not report where it is" in caplog.messages


def test_a_call_that_ends_waits_for_no_report_of_others(page):
    rank = Rank(page)
    rank.reporter.close()
    assert rank.ends_by("SOFT_TIMEOUT") == 0
