"""The progress page: what a rank writes, its monitor process reads."""

import pytest

from nvrx_core.progress.page import Page, Stage, Word


@pytest.fixture
def page():
    made = Page(10)
    yield made
    made.close()


def test_a_new_page_has_a_version_and_nothing_else(page):
    assert page[Word.VERSION] == Page.VERSION
    assert sum(page.words) == Page.VERSION
    assert page[Word.STAGE] == Stage.OUTSIDE


def test_words_do_not_overlap(page):
    for word in Word:
        page[word] = -(2**62) + word
    assert [page[word] for word in Word] == [-(2**62) + word for word in Word]
    assert page.members() == frozenset(range(10))


def test_a_new_stage_is_a_sign_of_life(page):
    page.enter(Stage.RUNNING)
    assert page[Word.STAGE] == Stage.RUNNING
    assert page[Word.AUTOMATIC] > 0


def test_manual_heartbeats_start_anew_with_each_iteration(page):
    for word in (Word.PING, Word.STEP, Word.STEP_AT, Word.MEETINGS, Word.COLLECTIVES, Word.MEETING):
        page[word] = 7
    page.begin_round(3, 1, 4)
    assert [page[w] for w in (Word.PING, Word.STEP_AT, Word.MEETINGS, Word.COLLECTIVES, Word.MEETING)] == [0] * 5
    assert (page[Word.ITERATION], page[Word.RANK], page[Word.WORLD_SIZE]) == (3, 1, 4)


def test_the_oldest_sign_of_life_in_use_counts(page):
    page[Word.AUTOMATIC] = 9 * 10**9
    page[Word.STAGE] = Stage.RUNNING
    assert page.alive_at() == 9.0
    page[Word.PING] = 7 * 10**9
    page[Word.STEP_AT] = 8 * 10**9
    assert page.alive_at() == 7.0
    page[Word.STAGE] = Stage.UNWINDING
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
    page[Word.ITERATION], page[Word.MONITOR_PID] = 3, 17
    page.lose([2])
    page.disown()
    assert (page[Word.ITERATION], page[Word.MONITOR_PID], page.members()) == (3, 17, frozenset(range(10)) - {2})
    page[Word.ITERATION] = 4
    assert page[Word.ITERATION] == 4
