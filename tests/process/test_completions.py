"""A rank completes, and others do not."""

from __future__ import annotations

from tests.harness.process.oracle import assert_nothing_left

from .conftest import Launch

COMPLETIONS = "tests.harness.process.workers.completions"


def test_a_late_completion_blames_the_rank_that_is_late(prepare: Launch) -> None:
    job = prepare(world=2).start(COMPLETIONS, NVRX_TEST_CASE="late").finish()
    assert_nothing_left(job)
    assert job.codes == {0: 0, 1: 0}
    for told in job.events("restart"):
        assert (told["culprits"], told["lost"]) == ([1], [])
        assert (told["cause"]["pid"], told["cause"]["rank"]) == (job.pids[0], 0)
        assert "not all of 2 ranks were complete after 2 s" in told["cause"]["message"]
        assert told["marks"]["entered"] - told["marks"]["occurred"] < 5.0
    assert len(job.events("restart")) == 2
    assert len(job.events("fault", initial_rank=0)) == 1


def test_peers_in_a_rendezvous_continue_without_a_rank_that_has_exited(prepare: Launch) -> None:
    job = prepare(world=3).start(COMPLETIONS, NVRX_TEST_CASE="rendezvous").finish()
    assert_nothing_left(job)
    assert job.codes == {0: 0, 1: 0, 2: 0}
    assert {line["initial_rank"]: line["result"] for line in job.lines("done")} == {0: 1, 2: 1}
    for told in job.events("restart"):
        assert (told["culprits"], told["cause"]["initial_rank"]) == ([1], 1)
        assert "initial ranks [0, 2] wait for it" in told["cause"]["message"]
        assert told["marks"]["entered"] - told["marks"]["occurred"] < 15.0
    assert len(job.events("restart")) == 2


def test_a_rendezvous_without_the_exited_rank_waits_for_a_late_rank(prepare: Launch) -> None:
    job = prepare(world=3).start(COMPLETIONS, NVRX_TEST_CASE="late rendezvous").finish()
    assert_nothing_left(job)
    assert job.events("restart") == []
    assert {line["initial_rank"]: line["result"] for line in job.lines("done")} == {0: 0, 2: 0}


def test_a_completion_may_take_longer_than_the_hard_timeout(prepare: Launch) -> None:
    """The rank has heard of the end of its round, although its main thread is in the callback."""
    job = prepare(world=2).start(COMPLETIONS, NVRX_TEST_CASE="slow").finish()
    assert_nothing_left(job)
    assert job.codes == {0: 0, 1: 0}
    assert {line["initial_rank"]: line["result"] for line in job.lines("done")} == {0: 0, 1: 0}
