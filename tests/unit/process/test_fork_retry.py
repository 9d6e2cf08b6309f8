"""When a fork that has failed is tried again."""

import errno

import pytest

from nvrx_core.process.fork_retry import LONGEST_PAUSE, ForkRetry


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM])
def test_a_lack_of_processes_or_memory_is_tried_again_in_growing_steps(code):
    retry = ForkRetry(15.0)
    pauses = list(iter(lambda: retry.failed(code), None))
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
    assert max(pauses) == LONGEST_PAUSE
    assert sum(pauses) == pytest.approx(15.0)
    assert pauses[-1] <= LONGEST_PAUSE


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, None])
def test_any_other_failure_is_not_tried_again(code):
    assert ForkRetry(15.0).failed(code) is None
