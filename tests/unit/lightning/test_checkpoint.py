"""The newest checkpoint that is whole and that all ranks see."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import torch
from nvrx_lightning.restart.checkpoint import SavedCheckpoints, agree, is_whole, newest_in, step_in
from torch.distributed import HashStore


def write(path: Path, step: int, **more: Any) -> str:
    torch.save({"global_step": step, "optimizer_states": [], **more}, path)
    return str(path)


def agreed(*ranks: SavedCheckpoints) -> set[str | None]:
    """What the ranks agree on, each in a thread."""
    store, found = HashStore(), list[str | None]()

    def ask(rank: int) -> None:
        found.append(agree(store, rank, len(ranks), ranks[rank]))

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == len(ranks)
    return set(found)


def known(*paths: str) -> SavedCheckpoints:
    saved = SavedCheckpoints()
    for number, path in enumerate(paths):
        saved.saved(path, number)
    return saved


def test_the_newest_is_chosen(tmp_path):
    old, new = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 10)
    assert agreed(known(old, new), known(old, new), known()) == {new}
    assert agreed(known(), known()) == {None}
    assert agreed(known(old)) == {old}
    assert agreed(known(), known(old, new), known(old)) == {new}  # rank 0 has waited in reserve


def test_all_ranks_know_afterwards_what_one_of_them_has_found(tmp_path):
    """Rank 0 may be lost before the next checkpoint."""
    old, new = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 10)
    ranks = known(old, new), known(), known(old)
    ranks[2].failed_to_load(new, OSError("no"))
    ranks[2].attempt_ended(by_this_rank=True)
    assert agreed(*ranks) == {old}
    assert agreed(*ranks[1:]) == {old}
    assert agreed(ranks[1]) == {new}


def test_one_that_is_damaged_or_gone_is_not_chosen(tmp_path):
    old, new = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 10)
    os.truncate(new, os.path.getsize(new) - 30)
    assert not is_whole(new)
    assert agreed(known(old, new), known(old, new)) == {old}
    Path(new).unlink()
    assert agreed(known(old, new), known(old, new)) == {old}


def test_one_that_a_rank_could_not_load_is_not_chosen_again(tmp_path, caplog):
    old, new = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 10)
    failed = known(old, new)
    failed.failed_to_load(new, OSError("no"))
    failed.attempt_ended(by_this_rank=True)
    assert agreed(known(old, new), failed) == {old}
    failed.saved(new, 10)  # written again
    assert agreed(known(old, new), failed) == {new}
    both = known(old)
    both.failed_to_load(old, OSError("no"))
    both.attempt_ended(by_this_rank=True)
    assert agreed(known(old), both) == {None}
    assert "visible on all ranks" in caplog.text


def test_the_contents_say_how_new_a_file_is_that_is_written_again(tmp_path):
    top, last = write(tmp_path / "b.ckpt", 10), write(tmp_path / "last.ckpt", 5)
    assert agreed(known(top, last)) == {top}  # `last` was noted as new, and its write never happened
    assert step_in(str(tmp_path / "none"), 7) == 7


def test_a_file_counts_once_it_is_whole_and_a_sharded_one_once_all_of_it_is_written(tmp_path):
    saved, file, folder = SavedCheckpoints(), tmp_path / "a.ckpt", tmp_path / "sharded.ckpt"
    saved.saving(file, 5)
    assert agreed(saved) == {None}
    assert agreed(known(), saved) == {None}
    write(file, 5)
    assert agreed(saved) == {str(file)}
    folder.mkdir()
    (folder / ".metadata").write_bytes(b"x")
    write(folder / "meta.pt", 9)
    saved.saved(folder, 9)
    assert agreed(saved) == {str(folder)}
    saved.saving(folder, 12)  # its shards are replaced
    assert agreed(saved) == {str(file)}


def test_a_sharded_checkpoint_needs_its_metadata(tmp_path):
    folder = tmp_path / "sharded.ckpt"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"x")
    assert not is_whole(str(folder))
    (folder / ".metadata").write_bytes(b"x")
    write(folder / "meta.pt", 3)
    assert is_whole(str(folder))
    assert step_in(str(folder), 0) == 3


def test_a_file_that_cannot_be_read_is_left_out(tmp_path, monkeypatch):
    good, bad = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 10)

    def look(path: str) -> bool:
        if path == bad:
            raise OSError("no")
        return True

    monkeypatch.setattr("nvrx_lightning.restart.checkpoint.is_whole", look)
    assert newest_in([tmp_path], lambda contents: "") == ([good], [])


def test_a_job_that_starts_again_finds_what_can_be_resumed(tmp_path):
    old = write(tmp_path / "a.ckpt", 5)
    os.utime(old, (1, 1))
    torch.save({"state_dict": {}}, tmp_path / "weights.ckpt")
    (tmp_path / "empty.ckpt").touch()
    (tmp_path / "other.ckpt").write_text("another format")
    new = write(tmp_path / "b.ckpt", 10)
    taken, refused = newest_in([tmp_path, tmp_path / "none"], lambda contents: "")
    assert taken == [new, old]
    assert sorted(refused) == [
        f"{tmp_path}/other.ckpt, in a format that nvrx cannot read",
        f"{tmp_path}/weights.ckpt, of weights alone",
    ]
    taken, refused = newest_in([tmp_path], lambda contents: "of another job" if contents["global_step"] == 10 else "")
    assert taken == [old]
    assert f"{new}, of another job" in refused
    saved = known(old, new)
    saved.removed(new)
    assert agreed(saved) == {old}


def test_the_states_of_what_may_be_in_the_files_are_needed(tmp_path):
    saved, folder = SavedCheckpoints(), tmp_path / "sharded.ckpt"
    folder.mkdir()
    for number in range(4):
        saved.saving("last.ckpt", number, f"last-{number}")
        saved.saving("top.ckpt", number, "top")
        saved.saving(folder, number, "sharded")
    assert saved.tokens == {"last-1", "last-2", "last-3", "top", "sharded"}
    saved.removed("top.ckpt")
    saved.removed("none.ckpt")
    assert saved.tokens == {"last-1", "last-2", "last-3", "sharded"}


def test_one_whose_load_another_rank_has_interrupted_is_chosen_again(tmp_path):
    new = write(tmp_path / "b.ckpt", 10)
    interrupted = known(new)
    interrupted.failed_to_load(new, RuntimeError("Connection closed by peer"))
    interrupted.attempt_ended(by_this_rank=False)
    assert agreed(known(new), interrupted) == {new}
    interrupted.attempt_ended(by_this_rank=True)
    assert agreed(known(new), interrupted) == {new}
