"""The files for the next job."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_lightning.monitoring import files

STATE = {"current_timeouts": {"heartbeat": {"initial": 1.0, "subsequent": 2.0, "were_calculated": True}}}


def test_timeouts_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / files.TIMEOUTS
    assert files.read_timeouts(path) is None
    files.write_timeouts(path, STATE)
    assert files.read_timeouts(path) == STATE
    assert [each.name for each in path.parent.iterdir()] == [files.TIMEOUTS]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2, "timeouts": {}}', '{"schema": 1, "timeouts": 3}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / files.TIMEOUTS
    path.write_text(text)
    with pytest.raises(ValueError, match=r"schema 1|Expecting value"):
        files.read_timeouts(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / files.TIMEOUTS
    files.write_timeouts(path, STATE)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_timeouts(path, {"current_timeouts": {}})
    assert files.read_timeouts(path) == STATE
    assert [each.name for each in tmp_path.iterdir()] == [files.TIMEOUTS]


def test_a_flag_is_an_empty_file(tmp_path: Path) -> None:
    files.touch(tmp_path / "runs" / "done")
    assert (tmp_path / "runs" / "done").read_bytes() == b""


@pytest.mark.parametrize(
    ("exp_dir", "dirpaths", "folder"),
    [
        ("/exp", ["/checkpoints"], "/exp"),
        (None, ["/checkpoints"], "/checkpoints"),
        (None, [None, "/second"], "/second"),
        (None, [], "/root"),
        (None, ["s3://bucket/checkpoints"], None),
    ],
)
def test_they_are_beside_the_checkpoints(exp_dir: str | None, dirpaths: list[Any], folder: str | None) -> None:
    callbacks = [SimpleNamespace(dirpath=dirpath) for dirpath in dirpaths]
    trainer = SimpleNamespace(checkpoint_callbacks=[*callbacks, SimpleNamespace()], default_root_dir="/root")
    assert files.folder_for(trainer, exp_dir) == (None if folder is None else Path(folder))
