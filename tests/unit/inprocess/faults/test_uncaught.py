"""The traceback of the exception that has ended a call is printed in one write, without the frames of libraries."""

import json
import sys

import pytest

from nvrx_core.inprocess.faults.uncaught import print_shortened


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


def uncaught(error):
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
    (text,) = uncaught(error)
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
    assert (told["message"], told["extraInfo"]["py_callstack"]) == ("ValueError: injected", text)


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
    assert len(uncaught(KeyError("other"))) > 1


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

    monkeypatch.setattr("nvrx_core.inprocess.faults.uncaught.shortened", refuse)
    error = ValueError("injected")
    print_shortened(error)
    assert "".join(uncaught(error)).endswith("ValueError: injected\n")
