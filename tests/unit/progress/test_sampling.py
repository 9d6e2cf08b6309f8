"""What a hang detector gets of a page."""

import math

import pytest

from nvrx_core.progress.limits import Limit, LimitKind
from nvrx_core.progress.page import Page, ProgressField, Stage
from nvrx_core.progress.sampling import signs_of_life, take_sample


@pytest.fixture
def page():
    """The page of a monitored rank that has sent a heartbeat at 5 s, and must send one within 2 s."""
    made = Page(1)
    made[ProgressField.ATTACHED_AT], made[ProgressField.HEARTBEAT_AT] = 3 * 10**9, 5 * 10**9
    made[ProgressField.HEARTBEAT_TIMEOUT] = 2 * 10**9
    yield made
    made.close()


def taken(page, **more):
    return take_sample(page, lambda moment: moment, **more)


def test_the_limit_that_expires_first_is_sampled(page):
    assert taken(page).limit == Limit(LimitKind.HEARTBEAT, 5.0, 2.0)
    assert taken(page).max_sample_interval == 1.0
    page[ProgressField.ATTACHED_AT] = 0
    assert (taken(page).limit, taken(page).max_sample_interval) == (None, math.inf)


def test_what_a_call_has_left_on_the_page_does_not_count_outside_of_it(page):
    page[ProgressField.ITERATION], page[ProgressField.INTERRUPTING], page[ProgressField.UNPROTECTED] = 3, 4, 1
    assert taken(page).protected
    assert not taken(page).interrupting
    page[ProgressField.STAGE] = Stage.RUNNING
    assert not taken(page).protected
    assert taken(page).interrupting


def test_a_main_thread_in_an_atomic_section_need_not_be_out_of_the_function(page):
    assert taken(page, out_by=9.0).out_by == 9.0
    page[ProgressField.ATOMIC] = 1
    assert taken(page, out_by=9.0).out_by == math.inf


def test_the_last_sign_of_life_is_of_any_kind(page):
    assert signs_of_life(page) == 5.0
    page[ProgressField.SECTION_AT] = 6 * 10**9
    assert signs_of_life(page) == 6.0
