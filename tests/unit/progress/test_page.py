"""The progress page: what a rank writes, its monitor process reads."""

import pytest

from nvrx_core.progress.page import Page, ProgressField, Stage


@pytest.fixture
def page():
    made = Page(10)
    yield made
    made.close()


def test_a_new_page_has_a_version_and_nothing_else(page):
    assert page[ProgressField.VERSION] == Page.VERSION
    assert sum(page.words) == Page.VERSION
    assert page[ProgressField.STAGE] == Stage.OUTSIDE


def test_words_do_not_overlap(page):
    for word in ProgressField:
        page[word] = -(2**62) + word
    assert [page[word] for word in ProgressField] == [-(2**62) + word for word in ProgressField]
    assert page.members() == frozenset(range(10))


def test_a_new_stage_is_a_sign_of_life(page):
    page.enter(Stage.RUNNING)
    assert page[ProgressField.STAGE] == Stage.RUNNING
    assert page[ProgressField.AUTO_HEARTBEAT] > 0


def test_manual_heartbeats_start_anew_with_each_iteration(page):
    for word in (
        ProgressField.PING,
        ProgressField.STEP,
        ProgressField.STEP_AT,
        ProgressField.MEETINGS,
        ProgressField.COLLECTIVES,
        ProgressField.MEETING,
    ):
        page[word] = 7
    page.begin_round(3, 1, 4)
    assert [
        page[w]
        for w in (
            ProgressField.PING,
            ProgressField.STEP_AT,
            ProgressField.MEETINGS,
            ProgressField.COLLECTIVES,
            ProgressField.MEETING,
        )
    ] == [0] * 5
    assert (page[ProgressField.ITERATION], page[ProgressField.RANK], page[ProgressField.WORLD_SIZE]) == (3, 1, 4)


def test_the_oldest_sign_of_life_in_use_counts(page):
    page[ProgressField.AUTO_HEARTBEAT] = 9 * 10**9
    page[ProgressField.STAGE] = Stage.RUNNING
    assert page.alive_at() == 9.0
    page[ProgressField.PING] = 7 * 10**9
    page[ProgressField.STEP_AT] = 8 * 10**9
    assert page.alive_at() == 7.0
    page[ProgressField.STAGE] = Stage.UNWINDING
    assert page.alive_at() == 9.0


def test_who_is_lost_stays_lost(page):
    page.lose([0, 9])
    page.lose([9, 3])
    assert page.members() == frozenset({1, 2, 4, 5, 6, 7, 8})
    assert sum(page.words) == Page.VERSION


@pytest.mark.parametrize("size", [1, 8, 9, 64])
def test_there_is_a_bit_for_every_member(size):
    page = Page(size)
    page.lose(range(size))
    assert page.members() == frozenset()
    page.close()


def test_a_disowned_page_goes_on_from_what_it_said(page):
    page[ProgressField.ITERATION], page[ProgressField.MONITOR_PID] = 3, 17
    page.lose([2])
    page.disown()
    assert (page[ProgressField.ITERATION], page[ProgressField.MONITOR_PID], page.members()) == (
        3,
        17,
        frozenset(range(10)) - {2},
    )
    page[ProgressField.ITERATION] = 4
    assert page[ProgressField.ITERATION] == 4
