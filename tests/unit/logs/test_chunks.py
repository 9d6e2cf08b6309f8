import pytest

from nvrx_core.logs.chunks import PathRefusedError, cycle_file, file_under
from nvrx_core.logs.frames import MAX_DATA, Frames, frame

ROOTS = ("/logs/job", "/other")


@pytest.mark.parametrize(("prefix", "file"), [
    ("/logs/train.log", "/logs/train_cycle3.log"), ("/logs/train", "/logs/train_cycle3.log"),
    ("/logs/train.txt", "/logs/train_cycle3.txt"), ("/logs.d/train", "/logs.d/train_cycle3.log"),
])  # fmt: skip
def test_a_cycle_has_a_file_of_its_own(prefix, file):
    assert cycle_file(prefix, 3) == file


@pytest.mark.parametrize(("path", "root", "names"), [
    ("/logs/job/train.log", "/logs/job", ("train.log",)), ("train.log", "/logs/job", ("train.log",)),
    ("/other/a/b", "/other", ("a", "b")), ("a..b", "/logs/job", ("a..b",)),
])  # fmt: skip
def test_a_file_is_named_from_a_root(path, root, names):
    assert file_under(ROOTS, path) == (root, names)


def test_the_root_of_all_may_be_a_root():
    assert file_under(("/",), "/logs/x") == ("/", ("logs", "x"))


@pytest.mark.parametrize("path", [
    "", ".", "..", "../x", "a/../x", "a//b", "a/", "/logs/job", "/logs/job/", "/logs/jobs/x", "/logs/job/../x",
    "/etc/x", "a\0b", "a\nb", "x" * 256, "é" * 128, "/".join("a" * 33),
])  # fmt: skip
def test_any_other_path_is_refused(path):
    with pytest.raises(PathRefusedError):
        file_under(ROOTS, path)


def test_frames_come_through_however_the_stream_is_cut():
    stream = frame("/a", b"one\n") + frame("/é", b"") + frame("/b", b"x" * (MAX_DATA + 1))
    frames = Frames()
    found = [each for at in range(0, len(stream), 70_001) for each in frames.feed(stream[at : at + 70_001])]
    assert found == [("/a", b"one\n"), ("/é", b""), ("/b", b"x" * MAX_DATA), ("/b", b"x")]
    assert [each for byte in frame("/a", b"1") for each in frames.feed(bytes([byte]))] == [("/a", b"1")]


@pytest.mark.parametrize("garbage", [b"\xff" * 6, b"\x00\x01\xff\xff\xff\xff"])
def test_what_is_no_frame_is_refused(garbage):
    with pytest.raises(ValueError, match="a frame of"):
        Frames().feed(garbage)
