"""What a rank had done when the round ended: a value of that moment, whatever becomes of the counters."""

import time

import pytest

from nvrx_core.fault.blame import RankProgress
from nvrx_core.inprocess.call.hang_reporter import RoundProgress
from nvrx_core.progress.page import Page, ProgressField, Stage

SOFT = 60.0


@pytest.fixture
def page():
    page = Page(1)
    page.begin_round(3, 0, 1)
    page.enter(Stage.RUNNING)
    yield page
    page.close()


def sample(page, observe=tuple):
    return RoundProgress(page, SOFT / 2, observe)


def test_the_counters_are_brought_up_to_date_and_kept(page):
    def observe():
        page[ProgressField.COLLECTIVES] = 9
        return ((17, 4),)

    one = sample(page, observe)
    page[ProgressField.RENDEZVOUS_COUNT], page[ProgressField.RENDEZVOUS_DEPTH], page[ProgressField.STEP] = 2, 1, 7
    one.take(3)
    page.begin_round(4, 0, 1)
    assert (one.progress, one.stalled) == (RankProgress(2, 1, 9, 7, ((17, 4),)), False)


def test_the_first_sample_of_a_round_counts(page):
    one = sample(page)
    page[ProgressField.COLLECTIVES] = 9
    one.take(3)
    page[ProgressField.COLLECTIVES] = 0
    one.take(3)
    assert one.progress.collectives == 9


def test_a_rank_that_has_not_begun_has_come_nowhere(page):
    one = sample(page, pytest.fail)
    page[ProgressField.COLLECTIVES], page[ProgressField.STALLED] = 9, 4
    one.take(4)
    assert (one.progress, one.stalled) == (RankProgress(), False)


@pytest.mark.parametrize(("stage", "stalled"), [(Stage.RUNNING, True), (Stage.WAITING, False)])
def test_who_shows_no_life_in_the_function_stands_still(page, stage, stalled):
    page.enter(stage)
    page[ProgressField.AUTO_HEARTBEAT] = time.monotonic_ns() - int(SOFT * 0.6e9)
    one = sample(page)
    one.take(3)
    assert one.stalled is stalled


def test_who_was_reported_stands_still(page):
    page[ProgressField.STALLED] = 4
    one = sample(page)
    one.take(3)
    assert one.stalled
