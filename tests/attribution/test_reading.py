"""Logs in files: folders, gzip, long lines, logs of any size; and the command."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from nvrx_core.attribution import reading
from nvrx_core.attribution.__main__ import main
from nvrx_core.attribution.reading import last_lines, log_files, open_faults, verdict_of_files

HEALTHY = "".join(
    f"2026-01-01 00:00:{n % 60:02} [rank{n % 4}] step {n} loss {1 / (n + 1):.6f}\n" for n in range(50_000)
)
WITHOUT_RANK_2 = HEALTHY.replace("[rank2]", "[rank3]")
FAILED = "[rank2]: Traceback (most recent call last):\n[rank2]:   File 'a', line 1\n[rank2]: KeyError: 'lr'\n"


def _verdict(tmp_path: Path, text: str | bytes, name: str = "run.log") -> tuple[str, int | None, int]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    verdict = verdict_of_files(log_files([path]))
    return verdict.failure, verdict.rank, verdict.evidence[0].line if verdict.evidence else 0


def test_a_failure_in_the_middle_of_a_long_log_is_found_at_its_line(tmp_path: Path) -> None:
    assert _verdict(tmp_path, HEALTHY + FAILED + WITHOUT_RANK_2) == ("user_exception", 2, 50_003)


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"
STEP = "[rank{0}]: step {1} loss 1.{1} lr 3.0e-05 grad norm 1.02 consumed samples {1} elapsed time per step 12.0 ms\n"


@pytest.mark.parametrize("ranks", [8, 128, 1024])
def test_each_of_many_ranks_in_one_file_is_heard(tmp_path: Path, ranks: int) -> None:
    def steps(first: int, last: int, without: int = -1) -> str:
        return "".join(
            STEP.format(rank, step) for step in range(first, last) for rank in range(ranks) if rank != without
        )

    error = FAILED.replace("[rank2]", "[rank5]")
    assert _verdict(tmp_path, steps(0, 9) + error + steps(9, 35))[0] == "clean"
    assert _verdict(tmp_path, steps(0, 9) + error + steps(9, 35, without=5))[:2] == ("user_exception", 5)
    others = "".join(f"[rank{rank}]: {LOST}\n" for rank in range(ranks) if rank != ranks - 2)
    assert _verdict(tmp_path, steps(0, 9) + others)[:2] == ("peer_lost", ranks - 2)


def test_a_gzip_file_is_read_and_a_broken_one_as_far_as_it_goes(tmp_path: Path) -> None:
    data = gzip.compress((FAILED + WITHOUT_RANK_2).encode())
    assert _verdict(tmp_path, data, "run.log.gz") == ("user_exception", 2, 3)
    assert _verdict(tmp_path, data[: len(data) // 2], "run.log.gz") == ("user_exception", 2, 3)


def test_a_line_without_an_end_and_a_progress_bar_are_read(tmp_path: Path) -> None:
    assert _verdict(tmp_path, "x" * (5 << 20) + "\n" + FAILED)[0] == "user_exception"
    bar = "".join(f"\r{n}%|##| {n}/100 step {n}" for n in range(5_000))
    assert _verdict(tmp_path, f"{bar}\rRuntimeError: CUDA out of memory\n")[0] == "cuda_out_of_memory"


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b", b"\x1f\x8bgarbage", b"\x00\xff\xfe" * 1_000, b"\n" * 5_000])
def test_what_is_no_log_is_no_error(tmp_path: Path, data: bytes) -> None:
    assert _verdict(tmp_path, data)[0] in {"clean", "unknown"}


def test_a_folder_is_read_without_links_and_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rank1.log").write_text("KeyError: 1\n")
    (tmp_path / "a" / "weights.pt").write_text("MemoryError\n")
    (tmp_path / "b.log").symlink_to(tmp_path / "a" / "rank1.log")
    os.mkfifo(tmp_path / "c.log")
    assert log_files([tmp_path]) == [tmp_path / "a" / "rank1.log"]


def test_too_many_files_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_FILES", 1)
    for name in "abc":
        (tmp_path / name).write_text("x")
    with pytest.raises(OSError, match="more than 1 files"):
        log_files([tmp_path])


def test_memory_is_bounded_on_a_log_of_which_no_two_lines_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_PATTERNS", 1_000)
    path = tmp_path / "run.log"
    letters = "abcdefghijklmnop"
    words = ("".join(letters[n >> shift & 15] for shift in range(0, 20, 4)) for n in range(20_000))
    path.write_text("".join(f"{word} RuntimeError: {word}\n" for word in words))
    tracemalloc.start()
    verdict_of_files([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


def test_a_healthy_log_is_read_at_many_megabytes_a_second(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(HEALTHY * 10)
    began = time.process_time()
    verdict_of_files([path])
    assert path.stat().st_size / (time.process_time() - began) > 10e6


def test_the_command_prints_a_verdict_with_its_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    path.write_text("step 1\n[rank2]: ValueError: \x1b[31mbad\x07 token=abcdefgh\n")
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == (
        "user_exception (confidence 0.85): rank 2 raised an exception: ValueError: bad? token=[redacted]; restart\n"
        f"  {path}:2: [rank2]: ValueError: bad? token=[redacted]\n"
    )


def test_the_command_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    path.write_text("[rank2]: ValueError: bad\n")
    assert main(["--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "class": "user_exception", "error_type": "ValueError", "rank": 2, "host": None, "node_to_exclude": None,
        "action": "restart", "confidence": 0.85,
        "evidence": [{"file": str(path), "line": 1, "text": "[rank2]: ValueError: bad"}],
        "sentence": "rank 2 raised an exception: ValueError: bad; restart",
    }  # fmt: skip


def test_the_command_says_what_is_wrong_with_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing.log")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 2
    assert "no file in what was named" in capsys.readouterr().err


def test_the_command_runs_as_a_module_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("step 1\n")
    command = [sys.executable, "-X", "importtime", "-m", "nvrx_core.attribution", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("clean (confidence 0.90)")
    assert "| torch" not in done.stderr


@pytest.mark.parametrize(
    "part", ["Error: expected ", "[", "Rank 1] ", "version mismatch ", "nan loss ", "0", ": ", "a-"]
)
def test_no_line_takes_long(part: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text((part * 5_000)[:4_096] + "\n")
    began = time.process_time()
    verdict_of_files([path])
    assert time.process_time() - began < 0.2


def test_the_last_lines_are_whole() -> None:
    assert last_lines(b"first\nsecond\nthird", 100) == ("first", "second", "third")
    assert last_lines(b"first\nsecond\nthird\n", 10) == ("third",)
    assert last_lines(b"x" * 50, 15) == ("x" * 15,)
    assert last_lines(b"", 15) == ()


def test_faults_count_that_no_restart_in_process_has_followed(tmp_path: Path) -> None:
    def event(name: str, wall: float, **fields: object) -> str:
        return json.dumps({"event": name, "wall": wall, **fields})

    file = tmp_path / "events-0.jsonl"
    assert open_faults(file, 0.0) == ()
    last = [event("fault", 7.0, message="c"), event("left", 8.0)]
    handled = [event("fault", 3.0, message="a"), event("restart", 4.0), event("fault", 5.0), event("restart", 6.0)]
    file.write_text("\n".join([*handled, "garbage", "[]", '{"event": "fault"}', *last]))
    assert open_faults(file, 2.0) == (last[0],)
    assert open_faults(file, 7.5) == ()
    file.write_text("\n".join(last))
    assert open_faults(file, 7.0) == (last[0],)
