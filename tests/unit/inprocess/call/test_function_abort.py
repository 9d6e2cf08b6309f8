"""Ending what the function waits in: whose abort is run, and what counts as a consequence of it."""

import threading
from types import SimpleNamespace

import pytest

from nvrx_core.flow import run
from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.call.function_abort import FunctionAbort
from nvrx_core.inprocess.state import State
from nvrx_core.process.signal_safe import SignalSafeCondition
from nvrx_core.progress.page import Page, ProgressField


class Noting(Abort):
    """The user's abort, the process groups and the sample of the progress: notes what is asked of each."""

    def __init__(self):
        self.asked = []
        self.held = self

    def __call__(self, state):
        self.asked.append("abort")
        return state

    def __getattr__(self, name):
        return lambda *arguments: self.asked.append(name)


@pytest.fixture
def page():
    page = Page(1)
    yield page
    page.close()


def function_abort(page, noting, *, abort=True):
    state = State(rank=0, world_size=1, iteration=2)
    return FunctionAbort(
        noting if abort else None,
        state,
        page,
        interrupter=noting,
        observer=noting,
        sample=noting,
        hangs=noting,
        changed=SignalSafeCondition(),
    )


async def abort_function(ending):
    await ending.abort_function(2)


def test_a_failure_after_the_abort_has_begun_is_recognised(page):
    noting = Noting()
    ending = function_abort(page, noting)
    assert ending.begun_in != 2
    run(abort_function(ending))
    assert (ending.begun_in, noting.asked) == (2, ["abort"])


def test_without_an_abort_nothing_is_run(page):
    noting = Noting()
    ending = function_abort(page, noting, abort=False)
    run(abort_function(ending))
    assert (ending.begun_in, noting.asked) == (2, [])


@pytest.mark.parametrize("abort", [True, False])
def test_a_rank_that_has_completed_frees_those_that_wait_for_it_unless_no_abort_is_wanted(page, abort):
    noting = Noting()
    function_abort(page, noting, abort=abort).release_completed(SystemExit(0))
    assert noting.asked == ["take", *(["abort_groups"] if abort else []), "release", "clear"]
    assert page[ProgressField.EXITED] == 3


@pytest.mark.parametrize("here", [True, False])
def test_a_rank_that_leaves_early_interrupts_its_function_unless_it_is_in_the_main_thread(page, here):
    noting = Noting()
    noting.thread = SimpleNamespace(ident=threading.get_ident() if here else 0)
    ending = function_abort(page, noting)
    ending.leave_early(KeyError)
    assert noting.asked == ["request", *([] if here else ["abort", "drive"])]
    assert (ending.begun_in == 2) is not here
