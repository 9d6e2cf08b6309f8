"""The plug-ins that come with the wrapper. CUDA is a fake: the tests run without it."""

import sys
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from nvrx_core.errors import FaultCounterExceeded, RestartAbort, RestartError, TimeoutError
from nvrx_core.inprocess import rank_assignment, rank_filter
from nvrx_core.inprocess.call.parameters import least_world_size
from nvrx_core.inprocess.completion import Completion
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.finalize import Finalize, ThreadedFinalize
from nvrx_core.inprocess.health_check import (
    CudaHealthCheck,
    FaultCounter,
    HealthCheck,
)
from nvrx_core.inprocess.initialize import Initialize, RetryController
from nvrx_core.inprocess.terminate import Terminate
from nvrx_core.rank_assignment.base import AssignmentState

AMPLE = timedelta(seconds=60)
TINY = timedelta(microseconds=1)


class FakeCuda:
    """Notes which thread asked for what."""

    def __init__(self, initialized=True, synchronize=lambda: None):
        self.initialized, self.hook = initialized, synchronize
        self.asked = []

    def is_initialized(self):
        return self.initialized

    def current_device(self):
        return 3

    def set_device(self, device):
        self.asked.append(f"device {device} in {self._where()}")

    def synchronize(self):
        self.asked.append(f"synchronize in {self._where()}")
        self.hook()

    def _where(self):
        return "main" if threading.current_thread() is threading.main_thread() else "thread"


@pytest.fixture
def cuda(monkeypatch):
    def install(**how):
        fake = FakeCuda(**how)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
        return fake

    return install


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def state(**fields):
    return AssignmentState(**{"rank": 1, "world_size": 4, **fields}).freeze()


@pytest.mark.parametrize("kind", [Initialize, Finalize, HealthCheck, Completion, Terminate])
def test_a_plugin_without_a_call_cannot_be_made(kind):
    with pytest.raises(TypeError, match="abstract"):
        kind()


def test_retry_controller_lets_pass_what_is_within_its_limits():
    before = state(iteration=2, active_world_size=4)
    assert RetryController(max_iterations=3, min_world_size=4, min_active_world_size=4)(before) is before
    assert RetryController()(state(iteration=10**6)).iteration == 10**6


@pytest.mark.parametrize(
    ("limits", "fields", "message"),
    [
        ({"max_iterations": 3}, {"iteration": 3}, "state.iteration=3 has reached max_iterations=3"),
        ({"max_iterations": 0}, {}, "state.iteration=0 has reached max_iterations=0"),
        ({"min_world_size": 5}, {}, "state.world_size=4 is below min_world_size=5"),
        ({"min_active_world_size": 5}, {}, "state.active_world_size=4 is below min_active_world_size=5"),
        ({"min_active_world_size": 3}, {"active_world_size": 2}, "state.active_world_size=2 is below"),
    ],
)
def test_retry_controller_aborts_beyond_a_limit(limits, fields, message):
    with pytest.raises(RestartAbort, match=message):
        RetryController(**limits)(state(**fields))


@pytest.mark.parametrize("name", ["max_iterations", "min_world_size", "min_active_world_size"])
def test_retry_controller_refuses_a_negative_limit(name):
    with pytest.raises(ValueError, match=f"{name}=-1: must be at least 0"):
        RetryController(**{name: -1})


def test_the_least_world_size_is_the_highest_that_a_composition_asks_for():
    class Other(Initialize):
        def __call__(self, state):
            return state

    few, many, any_ = (RetryController(min_world_size=size) for size in (2, 4, 0))
    assert [least_world_size(each) for each in (None, Other(), any_, many)] == [1, 1, 1, 4]
    assert least_world_size(Compose(few, Other(), Compose(Other(), many, few))) == 4
    assert least_world_size(Compose(few, RetryController())) == 2


def test_threaded_finalize_runs_in_a_thread_without_torch(no_torch):
    seen = []

    def finalize(*args, **kwargs):
        seen.append((args, kwargs, threading.current_thread()))

    before = state()
    assert ThreadedFinalize(AMPLE, finalize, (1, 2), {"flush": True})(before) is before
    (args, kwargs, thread) = seen[0]
    assert (args, kwargs) == ((1, 2), {"flush": True})
    assert thread is not threading.current_thread()
    assert thread.daemon


@pytest.mark.parametrize("initialized", [True, False])
def test_threaded_finalize_runs_on_the_callers_device(cuda, initialized):
    fake = cuda(initialized=initialized)
    ThreadedFinalize(AMPLE, lambda: None)(state())
    assert fake.asked == (["device 3 in thread"] if initialized else [])


def test_threaded_finalize_raises_what_its_function_raised(no_torch):
    def finalize():
        raise KeyError("unfinished")

    with pytest.raises(KeyError, match="unfinished") as caught:
        ThreadedFinalize(AMPLE, finalize)(state())
    assert caught.traceback[-1].name == "finalize"


def test_threaded_finalize_gives_up_on_a_hang(no_torch):
    done = threading.Event()

    def flush_forever():
        done.wait()

    with pytest.raises(
        TimeoutError, match=r"ThreadedFinalize\(.*flush_forever\) has not ended within 0:00:00"
    ) as caught:
        ThreadedFinalize(TINY, flush_forever)(state())
    done.set()
    assert isinstance(caught.value, RestartError)
    assert caught.value.seconds == TINY.total_seconds()


@pytest.mark.parametrize("timeout", [timedelta(0), -TINY])
@pytest.mark.parametrize("make", [lambda t: ThreadedFinalize(t, print), CudaHealthCheck])
def test_a_timeout_must_be_positive(make, timeout):
    with pytest.raises(ValueError, match=r"timeout=.* s: must be positive"):
        make(timeout)


def test_cuda_health_check_does_nothing_without_torch(no_torch):
    before = state()
    assert CudaHealthCheck()(before) is before


def test_cuda_health_check_does_nothing_where_cuda_was_not_used(cuda):
    fake = cuda(initialized=False)
    CudaHealthCheck()(state())
    assert fake.asked == []


def test_cuda_health_check_synchronises_in_a_thread_and_then_itself(cuda):
    fake = cuda()
    before = state()
    assert CudaHealthCheck(AMPLE)(before) is before
    assert fake.asked == ["device 3 in thread", "synchronize in thread", "synchronize in main"]


def test_cuda_health_check_gives_up_on_a_device_that_hangs(cuda):
    done = threading.Event()
    cuda(synchronize=done.wait)
    with pytest.raises(TimeoutError, match="CudaHealthCheck has not ended"):
        CudaHealthCheck(TINY)(state())
    done.set()


def test_cuda_health_check_passes_on_a_broken_device(cuda):
    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    cuda(synchronize=broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        CudaHealthCheck(AMPLE)(state())


def test_fault_counter_counts_this_ranks_own_faults():
    counter = FaultCounter(max_rank_faults=1)
    failed = state(fn_exception=ValueError())
    assert counter(state()) == state()
    assert counter(failed) is failed
    counter(state())
    with pytest.raises(FaultCounterExceeded, match="initial rank 1 has failed 2 times, max_rank_faults=1") as caught:
        counter(failed)
    assert (caught.value.faults, caught.value.limit) == (2, 1)


def test_fault_counter_without_a_limit_only_counts():
    counter = FaultCounter()
    for _ in range(5):
        counter(state(fn_exception=ValueError()))
    assert counter.faults == 5


def test_fault_counter_refuses_a_negative_limit():
    with pytest.raises(ValueError, match="max_rank_faults=-1: must be at least 0"):
        FaultCounter(-1)


def test_the_deprecated_module_of_the_filters_warns():
    for name in rank_filter.__all__:
        with pytest.warns(DeprecationWarning, match=f"rank_filter.{name} is now inprocess.rank_assignment.{name}"):
            assert getattr(rank_filter, name) is getattr(rank_assignment, name)
    with pytest.raises(AttributeError, match="has no attribute 'ShiftRanks'"):
        _ = rank_filter.ShiftRanks
