"""Pauses between tries, and between starts of a process that is lost again and again."""

from nvrx_core.backoff import Backoff, RestartBackoff


def test_each_pause_is_twice_as_long_up_to_a_limit():
    backoff = Backoff(0.1, 0.5)
    assert [backoff.pause(failures) for failures in range(6)] == [0.0, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert backoff.pause(10**6) == 0.5


def test_a_process_is_started_again_at_once_and_later_if_it_is_lost_early():
    restarts, pauses = RestartBackoff(), list[float]()
    for now in range(9):
        restarts.started(now=now)
        pauses.append(restarts.failed(now=now + RestartBackoff.STABLE - 0.5))
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    restarts.started(now=100.0)
    assert restarts.failed(now=110.0) == 0.0


def test_a_start_that_fails_is_no_long_run():
    """The process before it has run for long; to try at once again and again would keep the caller busy."""
    restarts = RestartBackoff()
    restarts.started(now=0.0)
    assert [restarts.failed(now=now) for now in (100.0, 100.0, 101.0, 103.0)] == [0.0, 1.0, 2.0, 4.0]
