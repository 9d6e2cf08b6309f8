"""What is cleaned up raises: in finalize, in a destructor, at the end of the process."""

from __future__ import annotations

from tests.harness.process.oracle import assert_nothing_lost, restart

from .conftest import Launch


def test_a_rank_whose_finalize_raises_leaves_and_says_so(launch: Launch) -> None:
    job = launch({(1, 0, 3): "exception"}, finalize_fails=1).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[1], lost=[1]), codes={1: 1})
    assert "ValueError: injected in finalize" in job.errors(1).splitlines()[-1]


def test_destructors_and_exit_handlers_that_raise_cost_nothing(launch: Launch) -> None:
    job = launch({(1, 0, 3): "exception", (0, 1, 3): "exception"}, untidy=True).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[1]), restart("EXCEPTION", by=[0]))
    for rank in range(3):
        assert "injected in __del__" in job.errors(rank)
        assert "injected at exit" in job.errors(rank)
