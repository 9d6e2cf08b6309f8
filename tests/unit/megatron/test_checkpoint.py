"""Checkpoints that a fault cannot tear: names, manifests, files that are replaced as a whole."""

from __future__ import annotations

import errno
import os
import pathlib
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from nvrx_megatron import AtomicCheckpoint, atomic_file, atomic_writes
from nvrx_megatron.manifest import NAME
from torch.distributed.checkpoint.api import CheckpointException

from nvrx_core.inprocess.call import current
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart


def write(text):
    return lambda folder: (folder / "data").write_text(text)


@pytest.fixture
def checkpoints(tmp_path):
    return AtomicCheckpoint(tmp_path / "saves", checksums=True)


def test_the_newest_complete_checkpoint_is_found(checkpoints):
    assert checkpoints.latest() is None
    checkpoints.save(2, write("two"))
    checkpoints.save(10, write("ten"))
    step, folder = checkpoints.latest()
    assert (step, (folder / "data").read_text()) == (10, "ten")


def test_a_save_that_fails_leaves_the_one_before_and_its_folder_is_dropped_by_the_next(checkpoints):
    checkpoints.save(1, write("one"))

    def fails(folder):
        (folder / "data").write_text("half")
        raise OSError(errno.ENOSPC, "no space left", str(folder / "data"))

    with pytest.raises(OSError, match="no space left") as raised:
        checkpoints.save(2, fails)
    (left,) = checkpoints.folder.glob("partial-step-00000002-0-*")
    assert f"{left.name} was written, whose disk has " in raised.value.__notes__[0]
    assert checkpoints.latest()[0] == 1
    checkpoints.save(2, write("two"))
    assert not list(checkpoints.folder.glob("partial-*"))
    assert checkpoints.latest()[0] == 2


def save_that_raises(checkpoints, error):
    def fails(folder):
        raise error

    with pytest.raises(type(error)) as raised:
        checkpoints.save(1, fails)
    return raised.value


def gone(path):
    raise OSError(errno.ESTALE, "Stale file handle")


def test_the_exception_of_a_save_to_a_file_system_that_has_gone_is_raised(checkpoints, monkeypatch):
    monkeypatch.setattr(os, "statvfs", gone)
    error = ValueError("of the save")
    assert save_that_raises(checkpoints, error) is error


@pytest.mark.parametrize("interrupt", [RankShouldRestart, KeyboardInterrupt])
def test_an_interrupt_of_a_save_does_not_touch_its_file_system(checkpoints, monkeypatch, interrupt):
    touched = []
    monkeypatch.setattr(os, "statvfs", touched.append)
    error = interrupt()
    assert save_that_raises(checkpoints, error) is error
    assert touched == []


def test_the_exception_of_a_save_of_torch_names_the_folder(checkpoints):
    raised = save_that_raises(checkpoints, CheckpointException("it has failed", {}))
    assert "partial-step-00000001-0-" in raised.__notes__[0]


def test_an_attempt_has_a_folder_that_no_other_attempt_had(checkpoints):
    """A writer that outlives its attempt finds no folder to write to."""
    first = checkpoints.begin(3)
    folder = first.folder
    del first
    second = checkpoints.begin(3)
    assert second.target.name == "step-00000003-0"
    assert second.folder != folder
    assert list(checkpoints.folder.iterdir()) == [second.folder]


def test_two_saves_of_a_step_may_be_in_progress(checkpoints):
    first, second = checkpoints.begin(3), checkpoints.begin(3)
    for attempt, text in ((first, "a"), (second, "b")):
        write(text)(attempt.folder)
        attempt.commit()
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-00000003-0", "step-00000003-1"]


class Iteration:
    """Stands for a `CallWrapper`."""

    iteration = 0


def enter(iteration):
    current.hold(Iteration(), iteration)


def leave(*returned):
    """Leave the function; the call has returned with this iteration, or by None raised."""
    current.clear()
    for iteration in returned:
        current.ended(iteration)


@pytest.fixture
def calls():
    yield
    leave(None)


def done():
    future = Future()
    future.set_result(None)
    return future


@pytest.mark.usefixtures("calls")
def test_an_attempt_ends_with_the_iteration_that_began_it(checkpoints, caplog):
    enter(0)
    attempt = checkpoints.begin(4)
    write("four")(attempt.folder)
    leave()
    assert not attempt.is_current(), "a restart may follow"
    enter(1)
    assert not attempt.is_current()
    assert not attempt.finish(done())
    attempt.commit()
    assert [message.partition(":")[0] for message in caplog.messages] == ["the save of step 4 is dropped"]
    assert checkpoints.latest() is None
    again = checkpoints.begin(4)
    assert not attempt.folder.exists()
    assert again.is_current()
    leave(1)
    assert not attempt.finish(done()), "its iteration was interrupted, although its call has returned"
    assert again.finish(done()), "a save may be completed after the function has returned"


@pytest.mark.usefixtures("calls")
def test_an_attempt_that_spans_two_calls_is_completed_in_the_second(checkpoints, caplog):
    enter(2)
    attempt = checkpoints.begin(4)
    write("four")(attempt.folder)
    leave(2)
    enter(0)
    assert attempt.poll(done())
    assert checkpoints.latest() == (4, attempt.target)
    assert not caplog.messages


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    "returned", [None, 1], ids=["the call has raised", "this rank was not active in its last iteration"]
)
def test_after_the_call_an_attempt_of_an_interrupted_iteration_does_not_commit(checkpoints, returned):
    enter(0)
    attempt = checkpoints.begin(4)
    write("four")(attempt.folder)
    leave(returned)
    attempt.commit()
    assert attempt.poll(done())
    assert checkpoints.latest() is None
    enter(0)
    assert not attempt.is_current()


@pytest.mark.usefixtures("calls")
def test_saves_that_are_polled_go_on_after_a_restart(checkpoints, caplog):
    """The loop of the guide: what is pending is kept by the module, and the restart has ended it."""
    pending = None

    def step(number):
        nonlocal pending
        if pending is None or pending[0].poll(pending[1]):
            attempt = checkpoints.begin(number)
            write("x")(attempt.folder)
            pending = attempt, Future()

    enter(0)
    step(1)
    step(2)
    assert pending[0].step == 1
    leave()
    enter(1)
    step(2)
    assert pending[0].step == 2
    assert len(caplog.messages) == 1
    step(3)
    pending[1].set_result(None)
    step(4)
    assert checkpoints.latest()[0] == 2
    assert pending[0].step == 4
    assert len(caplog.messages) == 1


def test_what_a_rank_has_begun_is_not_committed_once_a_restart_has_aborted_the_groups(checkpoints, monkeypatch):
    """Its function goes on in `atomic()` or in a handler, and each rank would take itself for the only one."""
    pending, future = checkpoints.begin(1), Future()
    future.set_result(None)

    def write_during_the_abort(folder):
        write("two")(folder)
        monkeypatch.setattr(GroupObserver, "current", SimpleNamespace(guard=SimpleNamespace(is_aborted=True)))

    with pytest.raises(RuntimeError, match="cannot agree on a checkpoint"):
        checkpoints.save(2, write_during_the_abort)
    assert not pending.finish(future)
    pending.commit()
    with pytest.raises(RuntimeError, match="cannot agree on a checkpoint"):
        checkpoints.begin(3)
    monkeypatch.undo()
    assert checkpoints.latest() is None


def test_a_save_in_the_background_that_fails_ends_its_attempt(checkpoints):
    attempt = checkpoints.begin(4)
    failed = Future()
    failed.set_exception(ValueError("a writer's"))
    with pytest.raises(ValueError, match="a writer's"):
        attempt.finish(failed)
    again = checkpoints.begin(4)
    assert not attempt.folder.exists()
    assert again.target == attempt.target


def test_an_error_that_cannot_be_sent_is_described(checkpoints):
    class Local(Exception):
        pass

    def fails():
        raise Local("of this function")

    with pytest.raises(RuntimeError, match="Local: of this function"):
        checkpoints._from_leader(fails)


def test_a_step_that_is_saved_again_is_another_checkpoint(checkpoints):
    first, second = checkpoints.save(3, write("a")), checkpoints.save(3, write("b"))
    assert first != second
    assert checkpoints.latest() == (3, second)


def test_old_checkpoints_are_dropped(tmp_path):
    checkpoints = AtomicCheckpoint(tmp_path, keep=2)
    for step in range(4):
        checkpoints.save(step, write("x"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002-0", "step-00000003-0"]


DAMAGES = {
    "flipped": (lambda file: file.write_bytes(b"X" + file.read_bytes()[1:]), "is damaged"),
    "cut short": (lambda file: file.write_bytes(file.read_bytes()[:-1]), "has 3 bytes, not 4"),
    "emptied": (lambda file: file.write_bytes(b""), "has 0 bytes, not 4"),
    "missing": (lambda file: file.unlink(), "data is missing"),
    "no list": (lambda file: file.with_name(NAME).unlink(), NAME),
    "torn list": (lambda file: file.with_name(NAME).write_text("{"), NAME),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(checkpoints, caplog, damage):
    checkpoints.save(1, write("good"))
    folder = checkpoints.save(2, write("data"))
    break_it, text = DAMAGES[damage]
    break_it(folder / "data")
    assert checkpoints.latest()[0] == 1
    assert str(folder) in caplog.messages[0]
    assert text in caplog.messages[0]


def test_a_background_save_is_complete_when_its_future_is(checkpoints):
    attempt, future = checkpoints.begin(5), Future()
    write("five")(attempt.folder)
    assert not attempt.poll(future)
    assert checkpoints.latest() is None
    future.set_result(None)
    assert attempt.poll(future)
    assert checkpoints.latest() == (5, attempt.target)


def test_a_save_that_begins_while_another_is_under_way_leaves_it_alone(checkpoints):
    first, second = checkpoints.begin(1), checkpoints.begin(2)
    for attempt in (first, second):
        write("x")(attempt.folder)
        attempt.commit()
    assert checkpoints.latest() == (2, second.target)
    assert first.target.is_dir()


def test_the_error_of_a_background_save_is_that_of_the_call(checkpoints):
    attempt, future = checkpoints.begin(5), Future()
    future.set_exception(OSError(errno.EIO, "input/output error"))
    with pytest.raises(OSError, match="input/output"):
        attempt.finish(future)
    assert checkpoints.latest() is None


@pytest.mark.parametrize("keep", [0, -1])
def test_to_keep_nothing_is_refused(tmp_path, keep):
    with pytest.raises(ValueError, match="keep"):
        AtomicCheckpoint(tmp_path, keep=keep)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "tracker"
    path.write_text("old")
    with atomic_file.replacing(path) as file:
        file.write("ne")
        assert path.read_text() == "old"
        file.write("w")
    assert path.read_text() == "new"


def test_a_file_whose_writing_fails_keeps_its_content(tmp_path):
    path = tmp_path / "tracker"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_file.replacing(path) as file:  # noqa: PT012
        file.write("new")
        raise RuntimeError
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("tracker", "old")]


def test_a_section_that_holds_for_long_is_named(caplog):
    waiting = threading.Event()
    with atomic_file.section("the tracker", max_hold=0.01):
        for _ in range(1000):
            if caplog.messages or waiting.wait(0.01):
                break
    assert caplog.messages == ["the tracker has held off restarts for 0.01 s"]


def test_only_files_on_which_a_load_gives_up_are_replaced_as_a_whole(tmp_path):
    opened = atomic_writes._opening(open)
    for name in ("latest_checkpointed_iteration.txt", "ft_state.json", "metadata.json", "other.txt"):
        with opened(tmp_path / name, "w") as file:
            file.write("1")
            assert (tmp_path / name).exists() == (name == "other.txt")
        with opened(tmp_path / name) as file:
            assert file.read() == "1"


def test_the_files_of_a_folder_get_their_content_as_a_whole(tmp_path):
    (tmp_path / "common.pt").write_text("old")
    with pytest.raises(RuntimeError), atomic_file.filling(tmp_path) as beside:  # noqa: PT012
        (beside / "common.pt").write_text("ne")
        raise RuntimeError
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("common.pt", "old")]
    (tmp_path / ".nvrx.tmp").mkdir()
    (tmp_path / ".nvrx.tmp" / "left.pt").write_text("of a process that was killed")
    with atomic_file.filling(tmp_path) as beside:
        (beside / "common.pt").write_text("new")
        assert (tmp_path / "common.pt").read_text() == "old"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("common.pt", "new")]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_common_state_is_saved_as_a_whole_by_the_rank_that_has_it(tmp_path, monkeypatch, rank):
    told = []

    def save_common(state, folder):
        told.append(pathlib.Path(folder) != tmp_path)
        if rank == 0:
            (pathlib.Path(folder) / "common.pt").write_text(state)

    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    atomic_writes._whole(save_common)("state", str(tmp_path))
    assert told == [rank == 0]
    assert [path.name for path in tmp_path.iterdir()] == ["common.pt"] * (rank == 0)
    atomic_writes._whole(lambda state, folder: told.append(folder))("state", "msc://bucket/folder")
    assert told[1:] == ["msc://bucket/folder"]


def test_what_a_killed_process_has_left_beside_a_file_is_removed(tmp_path):
    target, left = tmp_path / "latest_checkpointed_iteration.txt", tmp_path / ".latest_checkpointed_iteration.txt.7.tmp"
    left.write_text("10")
    os.utime(left, (time.time() - 100, time.time() - 100))
    other = tmp_path / ".latest_checkpointed_iteration.txt.8.tmp"
    other.write_text("of a rank that writes at the same time")
    with atomic_file.replacing(target) as file:
        file.write("12")
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, target.name]
    assert target.read_text() == "12"
