"""The named points of a test."""

import pytest

from nvrx_core import failpoint


@pytest.fixture
def hook():
    seen = []
    failpoint.install(lambda name, iteration: seen.append(name))
    yield seen
    failpoint.clear()


def test_a_point_calls_the_hook_with_its_name(hook):
    for name in failpoint.NAMES:
        failpoint.hit(name, 0)
    assert tuple(hook) == failpoint.NAMES


def test_there_are_twelve_points_with_different_names():
    assert len(set(failpoint.NAMES)) == 15


def test_a_point_without_a_hook_does_nothing(hook):
    failpoint.clear()
    failpoint.hit("entry-before", 0)
    failpoint.hit("no such point: nothing looks at the name", 0)
    assert hook == []


def test_an_unknown_failpoint_raises_under_a_hook(hook):
    with pytest.raises(ValueError, match="no failpoint 'entry'; the failpoints are store-connect, "):
        failpoint.hit("entry", 0)


def test_an_exception_of_the_hook_propagates():
    def inject(name, iteration):
        raise KeyError(name)

    failpoint.install(inject)
    try:
        with pytest.raises(KeyError, match="abort-during"):
            failpoint.hit("abort-during", 0)
    finally:
        failpoint.clear()
