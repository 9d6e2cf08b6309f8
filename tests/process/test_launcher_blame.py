"""Who is ended for a hang under launchers: the rank that the others wait for, and no other; and what is said of it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.process.launch import Nodes, Start, events_of


def test_a_rank_that_waits_in_a_collective_is_not_ended(launcher: Start, tmp_path: Path) -> None:
    """Both ranks are in the same step, with the same timeout: only their stacks tell them apart."""
    code, log = launcher("collective", "--max-restarts", "1", "--ft-rank-section-timeouts", "step:3").finish()
    assert code == 0, log
    (told,) = events_of(tmp_path, "rank_hung")
    assert told["rank"] == 1, log
    frame = r"launcher_worker\.py:\d+ collective < launcher_worker\.py:\d+ <module>"
    assert re.search(
        rf"is hung: section 'step' open for \S+ s \(timeout 3 s\), at {frame}(, waiting for [^,]+)?, "
        "as far as rank 0, its slowest peer",
        told["reason"],
    )
    assert "in collective" in told["stack"]
    assert re.search(r"rank 1 .* was ended by SIGKILL, hung: section 'step' open for", log)
    (verdict,) = events_of(tmp_path, "hang_verdict")
    assert re.fullmatch(
        r"rank 1 \(\S+\) stands at launcher_worker\.py:\d+ in collective for .*, section 'step' open for \S+ s; "
        r"rank 0 waits for it in all_reduce #\d+ of the default group",
        verdict["sentence"],
    )
    assert log.count(f"hang: {verdict['sentence']}\n") == 1
    assert re.search(r"verdict of cycle 0: hang, rank 1 on \S+; action restart, confidence 0\.95\n", log)


def test_a_rank_that_waits_for_one_of_another_node_is_not_ended(nodes: Nodes, tmp_path: Path) -> None:
    """Rank 2 hangs in its first step; the others, of both nodes, wait in their second one, with the same timeout."""
    jobs = nodes(2, "behind", "--nnodes", "2", "--max-restarts", "1", "--ft-rank-section-timeouts", "step:3")
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    (told,) = events_of(tmp_path, "rank_hung")
    assert told["rank"] == 2, ends
    assert re.search(
        r"at launcher_worker\.py:\d+ behind < .*, waiting for the end of a sleep, "
        r"1 step behind rank \d, its slowest peer$",
        told["reason"],
    )
    assert all("was ended by SIGKILL, hung: section 'step' open" in log for _, log in ends)
    named = [each["ranks"] for each in events_of(tmp_path, "hang_verdict")]
    assert [2] in named, named
    assert all(each in ([2], []) for each in named), named  # a node that is told too late has a verdict of its own
    assert all("hang: rank 2 (" in log for _, log in ends)
