"""What ships to users for their own tests: schedules, failpoints, fakes."""

import os
import threading
import time

import pytest
import torch.distributed as dist

from nvrx_core import failpoint, testing
from nvrx_core.inprocess import CallWrapper, Compose, Mode
from nvrx_core.inprocess.rank_assignment import (
    FilterCountGroupedByKey,
    Layer,
    LayerFlag,
    MaxActiveWorldSize,
    RankAssignment,
    RankDiscarded,
    ShiftRanks,
    Tree,
)
from nvrx_core.testing import (
    Delay,
    FailpointTrigger,
    FakeCallWrapper,
    FakeRanks,
    FaultKind,
    InjectedFault,
    ManualClock,
    MemoryStore,
    Point,
    Schedule,
    failpoints,
    inject,
    inject_fault,
)
from nvrx_core.testing.injection import KNOWN_AS

PEER = "GPU_ERROR GPU_SLEEP WORKLOAD_EXC ASYNC_EXC SIGNAL_EXC OS_ABORT LOCK_GIL SEGFAULT SIGINT SIGKILL SIGTERM SIGSTOP"


def test_every_public_name_is_there():
    assert all(getattr(testing, name) is not None for name in testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'faultz'"):
        _ = testing.faultz


# Schedules


def test_a_schedule_has_steps_and_failpoints():
    text = "1:0:3=kill, 2:-1@store-connect=stop, 2:1@barrier-before#2=delay:0.5"
    schedule = Schedule.parse(text)
    assert str(schedule) == text
    assert schedule.due(Point(1, 0, 3)) is FaultKind.KILL
    assert schedule.hits(2) == {
        FailpointTrigger(2, -1, "store-connect"): FaultKind.STOP,
        FailpointTrigger(2, 1, "barrier-before", 2): Delay(0.5),
    }
    assert schedule.hits(1) == {}


@pytest.mark.parametrize(
    "text", ["1:0@nowhere=kill", "1@barrier-before=kill", "1:0@barrier-before#x=kill", "1:0:0=delay:x"]
)
def test_a_malformed_entry_is_quoted(text):
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        Schedule.parse(text)


# Failpoints


def test_a_fault_is_injected_at_the_nth_hit_of_its_iteration_once(tmp_path):
    record = tmp_path / "record"
    with failpoints.scheduled("3:1@entry-before#2=exception", initial_rank=3, record=record):
        for iteration in (0, 0, 1):
            failpoint.hit("entry-before", iteration)
        failpoint.hit("barrier-before", 1)
        assert failpoints.read_record(record) == []
        with pytest.raises(InjectedFault):
            failpoint.hit("entry-before", 1)
        failpoint.hit("entry-before", 1)
    (line,) = failpoints.read_record(record)
    assert (line["hit"], line["fault"], line["pid"]) == ("3:1@entry-before#2", "exception", os.getpid())
    assert not failpoint.installed()


def test_the_fault_of_another_rank_is_not_injected():
    with failpoints.scheduled("1:0@entry-before=exception", initial_rank=0):
        failpoint.hit("entry-before", 0)


def test_a_passage_in_a_forked_process_counts_in_all(tmp_path):
    with failpoints.scheduled("0:0@monitor-ready=os_exit_0, 0:0@monitor-ready#2=exception", initial_rank=0):
        child = os.fork()
        if child == 0:
            failpoint.hit("monitor-ready", 0)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(InjectedFault):
            failpoint.hit("monitor-ready", 0)


def test_a_schedule_comes_from_an_environment_only_when_asked(tmp_path):
    assert not failpoints.install_from_env({"RANK": "1"})
    environ = {"NVRX_FAILPOINTS": "1:0@entry-before=exception", "RANK": "1"}
    assert failpoints.install_from_env(environ)
    try:
        with pytest.raises(InjectedFault):
            failpoint.hit("entry-before", 0)
    finally:
        failpoints.clear()


# Faults


def test_the_peers_twelve_faults_are_known_by_their_names():
    assert sorted(KNOWN_AS) == sorted(PEER.split())


@pytest.mark.parametrize("fault", ["WORKLOAD_EXC", "ASYNC_EXC", "SIGNAL_EXC", FaultKind.EXCEPTION])
def test_a_fault_that_raises_raises_here(fault):
    with pytest.raises(InjectedFault):
        inject_fault(fault)


def test_an_allocation_that_fails():
    with pytest.raises(MemoryError):
        inject_fault("memory_error")


@pytest.mark.parametrize("fault", ["ASYNC_EXC", "SIGNAL_EXC"])
def test_a_fault_is_injected_after_a_delay(fault):
    before = set(threading.enumerate())
    with pytest.raises(InjectedFault):
        inject_and_wait(fault)
    for timer in set(threading.enumerate()) - before:
        timer.join()


def inject_and_wait(fault):
    """The delay may be over before the timer is handed out."""
    inject_fault(fault, delay=0.02)
    while True:
        threading.Event().wait(0.001)


def test_an_exception_in_another_thread_spares_the_caller(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    inject_fault(FaultKind.THREAD_EXCEPTION)
    assert [hook.exc_type for hook in seen] == [InjectedFault]


def test_a_fault_of_the_calling_thread_cannot_be_delayed():
    with pytest.raises(ValueError, match=r"is injected into the thread that calls; .* async_exception"):
        inject_fault(FaultKind.EXCEPTION, delay=1.0)


@pytest.mark.parametrize(("kind", "needs"), [("monitor_kill", "monitor process"), ("gpu_error", "a CUDA device")])
def test_a_fault_says_what_it_needs(kind, needs, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=needs):
        inject(kind, call=FakeCallWrapper())


def test_a_delay_is_no_fault(monkeypatch):
    slept = []
    monkeypatch.setattr("nvrx_core.testing.faults._sleep", slept.append)
    inject("delay:0.25")
    assert slept == [0.25]


# Fakes


def test_a_manual_clock_moves_when_it_is_moved():
    clock = ManualClock(now=5.0, wall=100.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall()) == (7.5, 102.5)
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1.0)


def test_a_wait_in_a_memory_store_ends_when_another_thread_sets_the_key():
    store = MemoryStore()
    thread = threading.Thread(target=store.set, args=("key", "value"))
    thread.start()
    assert store.get("key") == b"value"
    thread.join()
    assert dist.PrefixStore("other", store).add("count", 1) == 1


def test_a_fake_call_wrapper_fakes_all_that_a_call_wrapper_has():
    def public(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(CallWrapper) - public(FakeCallWrapper) == {"store"}


def test_a_fake_call_wrapper_counts_what_a_function_asks_of_it():
    call = FakeCallWrapper(iteration=1, rank=2, world_size=4)
    with call.atomic(), call.disable_hang_protection(), call.suspend_ping():
        call.ping()
        call.progress(7)
        assert (call.depth, call.unprotected, call.suspended) == (1, 1, 1)
    assert (call.pings, call.steps, call.sections, call.depth, call.unprotected) == (1, [7], 1, 0, 0)
    assert call.suspended == 0
    assert (call.state.active_rank, call.state.active_world_size, call.state.iteration) == (2, 4, 1)
    call.store.set("key", "of iteration 1")
    call.restart()
    assert call.iteration == 2
    assert not call.store.check(["key"])
    with call.atomic_lock:
        assert call.depth == 1
    with pytest.raises(AttributeError, match="no monitor_process"):
        _ = call.monitor_process


def test_stamps_are_monotonic_seconds():
    stamps = []
    before = time.monotonic()
    with pytest.raises(InjectedFault):
        inject(FaultKind.EXCEPTION, stamp=stamps.append)
    assert before <= stamps[0] <= time.monotonic()


# Ranks


def test_fake_ranks_show_how_a_reserve_takes_over():
    ranks = FakeRanks(Compose(MaxActiveWorldSize(2), ShiftRanks()), world_size=3)
    assert {number: state.active_rank for number, state in ranks.states.items()} == {0: 0, 1: 1, 2: None}
    states = ranks.restart(lost={0})
    assert {number: state.active_rank for number, state in states.items()} == {1: 0, 2: 1}
    assert {state.iteration for state in states.values()} == {1}
    assert ranks.left == {0: None}
    assert ranks.restart()[2].mode is Mode.ACTIVE


def test_fake_ranks_carry_keys_and_say_why_a_rank_left():
    by_node = FilterCountGroupedByKey(lambda state: state.initial_rank // 2, lambda count: count == 2)
    ranks = FakeRanks(Compose(ShiftRanks(), by_node), world_size=4)
    states = ranks.restart(lost={1})
    assert {number: state.rank for number, state in states.items()} == {2: 0, 3: 1}
    assert isinstance(ranks.left[0], RankDiscarded)


def test_fake_ranks_have_a_tree_each():
    tree = Tree([Layer(max_ranks=2, flag=LayerFlag.RESERVE)])
    ranks = FakeRanks(tree, world_size=5)
    for lost, active in [(0, [4, 1]), (1, [4, 3]), (4, [2, 3])]:
        states = ranks.restart(lost={lost})
        held = {state.active_rank: number for number, state in states.items()}
        assert [held[0], held[1]] == active
    assert ranks.left == dict.fromkeys((0, 1, 4))


def test_fake_ranks_may_wait_for_each_other_in_the_store():
    class Reversed(RankAssignment):
        def __call__(self, ctx):
            ctx.store.set(f"hello {ctx.state.rank}", "")
            for rank in range(ctx.state.world_size):
                ctx.store.get(f"hello {rank}")
            ctx.state.rank = ctx.state.world_size - 1 - ctx.state.rank
            return ctx

    assert {number: state.rank for number, state in FakeRanks(Reversed(), 3).states.items()} == {0: 2, 1: 1, 2: 0}
