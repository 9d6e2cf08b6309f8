"""The traceback of the exception that has ended a call is printed in one write, without the frames of libraries."""

import fcntl
import json
import sys
import threading
from datetime import timedelta

import pytest

from nvrx_core.inprocess.call import user_errors as uncaught
from nvrx_core.inprocess.call.user_errors import print_shortened


@pytest.fixture(autouse=True)
def hook(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)


class Stream:
    """Records each write."""

    def __init__(self):
        self.writes = []

    def write(self, text):
        self.writes.append(text)

    def flush(self):
        pass


def shown(error):
    """Let the interpreter's hook print the error; return what it writes."""
    try:
        raise error
    except BaseException as raised:
        stream = Stream()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            sys.excepthook(type(raised), raised, raised.__traceback__)
        return [text for text in stream.writes if text]


def test_it_is_one_write():
    error = ValueError("injected")
    print_shortened(error)
    (text,) = shown(error)
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("ValueError: injected\n")
    assert sys.excepthook is sys.__excepthook__


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """The folder of a launch, in whose environment this process is a rank."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_0" / "1" / "error.json"))
    return tmp_path


def printed(error, stream, prefix=""):
    """Let the interpreter's hook print the error to an open file; return what it writes."""
    begin = stream.tell()
    print_shortened(error, prefix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        sys.excepthook(type(error), error, error.__traceback__)
    stream.seek(begin)
    return stream.read()


def failed(text="injected"):
    with pytest.raises(ValueError, match=text) as found:
        raise ValueError(text)
    return found.value


def test_ranks_and_attempts_that_fail_alike_print_one_traceback_to_a_stream(launch, tmp_path):
    with (tmp_path / "terminal").open("w+") as terminal, (tmp_path / "other").open("w+") as other:
        first, second, third = (printed(failed(), terminal, f"[rank{rank}]: ") for rank in range(3))
        assert first.startswith("[rank0]: Traceback (most recent call last):\n")
        assert first.endswith("\n[rank0]: ValueError: injected\n")
        assert second.splitlines()[0] == "[rank1]: ValueError: injected"
        assert second.splitlines()[1].startswith(f"[rank1]: (at {__file__}:")
        assert len(third.splitlines()) == 2
        assert "Traceback" in printed(failed("another"), terminal)
        assert "Traceback" in printed(failed("on initial rank 0: <Net at 0x7f1d>"), terminal)
        assert "Traceback" not in printed(failed("on initial rank 12: <Net at 0x8a9b>"), terminal)
        assert "Traceback" in printed(failed(), other)


def test_the_launcher_is_told_the_cause_once(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("FT_LAUNCHER_IPC_SOCKET", str(tmp_path / "socket"))
    (file := launch / "attempt_0" / "1" / "error.json").parent.mkdir(parents=True)
    with (tmp_path / "terminal").open("w+") as terminal:
        text = printed(failed("injected. Next: mend it"), terminal)
        printed(failed("another"), terminal)
    told = json.loads(file.read_text())["message"]
    assert (told["message"], text.endswith("injected. Next: mend it\n")) == ("ValueError: injected", True)


def through_torch():
    path, space = "/venv/lib/python3.11/site-packages/torch/linear.py", {}
    exec(compile("def run(depth):\n    return run(depth - 1) if depth else 1 / 0", path, "exec"), space)
    space["run"](8)


@pytest.fixture
def told(launch, monkeypatch):
    """The error file, for a launcher."""
    monkeypatch.setenv("FT_LAUNCHER_IPC_SOCKET", "/tmp/socket")
    (file := launch / "attempt_0" / "1" / "error.json").parent.mkdir(parents=True)
    return lambda: json.loads(file.read_text())["message"]["extraInfo"]["py_callstack"]


def test_the_launcher_is_told_all_frames(told, tmp_path):
    with pytest.raises(ZeroDivisionError) as found:
        through_torch()
    with (tmp_path / "terminal").open("w+") as terminal:
        text = printed(found.value, terminal)
    assert "  [6 frames of torch]\n" in text
    assert text.count("linear.py") == 3
    assert "[Previous line repeated 6 more times]" in told()


@pytest.mark.parametrize("full", [False, True])
def test_the_launcher_is_told_whoever_prints_it(told, tmp_path, monkeypatch, full):
    shown = []
    if full:
        monkeypatch.setenv("NVRX_FULL_TRACEBACK", "1")
    else:
        monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error[1]))
    with (tmp_path / "terminal").open("w+") as terminal:
        text = printed(error := failed(), terminal)
    assert "ValueError: injected" in told()
    assert ("Traceback" in text, shown) == (full, [] if full else [error])


def test_an_exception_that_was_caught_keeps_no_other_from_being_shortened(told, tmp_path):
    print_shortened(failed("caught"))
    with (tmp_path / "terminal").open("w+") as terminal:
        text = printed(failed(), terminal, "[rank0]: ")
    assert text.startswith("[rank0]: Traceback")
    assert "ValueError: injected" in told()
    assert sys.excepthook is sys.__excepthook__


def test_a_traceback_whose_rank_was_terminated_before_it_was_printed_is_printed_by_another(launch, tmp_path):
    class Terminated(BaseException):
        pass

    def terminate(*text, **options):
        raise Terminated

    with (tmp_path / "terminal").open("w+") as terminal:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Terminated):  # noqa: PT012
            patch.setattr(uncaught, "print", terminate, raising=False)
            printed(failed(), terminal)
        assert "Traceback" in printed(failed(), terminal)
        assert "Traceback" not in printed(failed(), terminal)


def test_a_rank_that_prints_the_same_is_waited_for_but_not_for_ever(launch, tmp_path, monkeypatch):
    with (tmp_path / "terminal").open("w+") as terminal:
        printed(failed(), terminal)
        (marker,) = launch.glob("printed-*")
        marker.write_text("")
        with marker.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            monkeypatch.setattr(uncaught, "PRINTED_WITHIN", timedelta(seconds=0.05))
            assert "Traceback" in printed(failed(), terminal)
        for thread in threading.enumerate():
            if thread.name == "nvrx-traceback-lock":
                thread.join(10)


def test_torchrun_is_told_nothing(launch, tmp_path):
    (folder := launch / "attempt_0" / "1").mkdir(parents=True)
    with (tmp_path / "terminal").open("w+") as terminal:
        printed(failed(), terminal)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("file", ["", "error.json", "/nowhere/attempt_0/0/error.json", "/tmp/own/0/error.json"])
def test_without_a_folder_of_the_launch_each_traceback_is_printed(monkeypatch, tmp_path, file):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", file)
    with (tmp_path / "terminal").open("w+") as terminal:
        assert all("Traceback" in printed(failed(), terminal) for _ in range(2))


def test_another_exception_is_printed_by_the_interpreter():
    caught = ValueError("caught")
    print_shortened(caught)
    assert len(shown(KeyError("other"))) > 1


def test_a_hook_of_the_users_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", print)
    print_shortened(ValueError())
    assert sys.excepthook is print


def test_all_frames_are_shown_if_they_are_wanted(monkeypatch):
    monkeypatch.setenv("NVRX_FULL_TRACEBACK", "1")
    print_shortened(ValueError())
    assert sys.excepthook is sys.__excepthook__


def test_an_exception_that_cannot_be_formatted_is_left_to_the_interpreter(monkeypatch):
    def refuse(captured):
        raise TypeError("a property of the user's")

    monkeypatch.setattr("nvrx_core.inprocess.call.user_errors.shortened", refuse)
    error = ValueError("injected")
    print_shortened(error)
    assert "".join(shown(error)).endswith("ValueError: injected\n")
