"""The folder of a launcher: those of launchers of this host that are gone are removed, and no others."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from nvrx_launcher import runtime_folder as module
from nvrx_launcher.runtime_folder import runtime_folder

from nvrx_core.fault_tolerance import wire
from nvrx_core.fault_tolerance.wire import MAX_FOLDER, MAX_PATH, host_tag


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    parent = tmp_path / "run"
    parent.mkdir(mode=0o700)
    monkeypatch.setenv("NVRX_RUNTIME_DIR", str(parent))
    return parent


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as cleanup:
        yield cleanup


def test_a_launcher_leaves_the_folders_of_other_hosts_alone(
    parent: Path, cleanup: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS with local locks, that of a launcher that runs elsewhere seems unlocked."""
    monkeypatch.setattr(wire, "boot_id", lambda: "another")
    elsewhere = parent / f"launcher-{host_tag()}abc"
    elsewhere.mkdir()
    monkeypatch.undo()
    monkeypatch.setenv("NVRX_RUNTIME_DIR", str(parent))
    left = parent / f"launcher-{host_tag()}abc"
    left.mkdir()
    mine = runtime_folder(cleanup)
    assert sorted(parent.iterdir()) == sorted([mine, elsewhere])


def test_a_folder_has_the_length_that_the_paths_of_sockets_leave_to_it(parent: Path, cleanup: ExitStack) -> None:
    folder = runtime_folder(cleanup)
    assert len(os.fsencode(folder)) == len(os.fsencode(parent)) + len("/launcher-12345678")
    assert MAX_FOLDER + len(f"/{folder.name}/rank-999.socket") == MAX_PATH


def test_a_launcher_that_runs_keeps_its_folder(parent: Path, cleanup: ExitStack) -> None:
    first = runtime_folder(cleanup)
    with ExitStack() as second:
        assert runtime_folder(second) != first
    assert list(parent.iterdir()) == [first]
    cleanup.close()
    assert not first.exists()


def test_a_name_that_is_taken_is_not_used(parent: Path, cleanup: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(module.secrets, "token_urlsafe", lambda _: next(names))
    assert [runtime_folder(cleanup).name[-3:] for _ in range(2)] == ["aaa", "bbb"]


@pytest.mark.parametrize("when", ["opened", "locked", "removed"])
def test_a_new_folder_that_another_launcher_takes_for_one_that_is_left_is_made_again(
    parent: Path, cleanup: ExitStack, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before its launcher has locked it."""
    real_open, real_lock, removed = os.open, fcntl.flock, list[Path]()

    def take(path: Path) -> None:
        removed.append(path)
        path.rmdir()

    def opening(path: Path, flags: int) -> int:
        if not removed and when == "opened":
            take(path)
        return real_open(path, flags)

    def locking(fd: int, operation: int) -> None:
        if not removed and when == "locked":
            take(Path(f"/proc/self/fd/{fd}").readlink())
            raise BlockingIOError
        real_lock(fd, operation)
        if not removed and when == "removed":
            take(Path(f"/proc/self/fd/{fd}").readlink())

    monkeypatch.setattr(module.os, "open", opening)
    monkeypatch.setattr(module.fcntl, "flock", locking)
    mine = runtime_folder(cleanup)
    assert mine.is_dir()
    assert removed
    assert removed != [mine]


def test_a_file_system_without_locks_does(parent: Path, cleanup: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(module.fcntl, "flock", no_locks)
    assert runtime_folder(cleanup).is_dir()
    runtime_folder(cleanup)
    assert len(list(parent.iterdir())) == 2, "it is not known that the first one is left"


def test_without_a_boot_id_the_name_of_the_host_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "boot_id", str)
    assert len(host_tag()) == 5
