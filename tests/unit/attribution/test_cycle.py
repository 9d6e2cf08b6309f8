"""The verdict of a cycle from what launchers know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvrx_core.attribution.cycle import LAUNCHER_FILE, CycleReport, FailureReport, verdict_of_cycle
from nvrx_core.attribution.verdict import Action, Verdict
from nvrx_core.fault.hang_verdict import HangOutcome, HangVerdict

RANKS = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
LOST = "RuntimeError: [gloo/x] Connection closed by peer [127.0.0.1]:1"


def failed(rank: int, how: str = "has failed with exit code 1") -> FailureReport:
    return FailureReport(RANKS[rank], f"rank {rank} (local rank {rank % 2}, pid {40 + rank}) {how}")


def judged(*failures: FailureReport) -> Verdict:
    return verdict_of_cycle(CycleReport(RANKS, failures))


def test_the_first_end_counts_by_its_signal() -> None:
    failures = (failed(2, "was ended by SIGSEGV"), failed(0))
    verdict = verdict_of_cycle(CycleReport(RANKS, failures, logs={(0, "0/stderr.log"): (LOST,)}))
    assert (verdict.failure, verdict.rank, verdict.host) == ("segmentation_fault", 2, "n1")
    assert verdict.evidence[0].file == LAUNCHER_FILE
    assert verdict.evidence[0].text == "rank 2 (local rank 0, pid 42) was ended by SIGSEGV"


def test_a_kill_by_the_oom_killer_and_one_by_a_rank_monitor_are_told_apart() -> None:
    killed = "was ended by SIGKILL"
    by_kernel = judged(failed(2, f"{killed}, and the kernel's OOM killer was active in its cgroup"))
    assert by_kernel.failure == "host_out_of_memory"
    by_monitor = judged(failed(2, f"{killed}: KeyError: 'handled', hung: no heartbeat for 45.0 s: at a: b"))
    assert (by_monitor.failure, by_monitor.rank) == ("hang", 2)
    by_somebody = judged(failed(2, killed))
    assert (by_somebody.failure, by_somebody.rank, by_somebody.action) == ("operator_kill", 2, Action.RESTART)


@pytest.mark.parametrize("how", ["has failed with exit code 3", "was ended by SIGRTMIN+8", "was ended by signal 99"])
def test_an_end_that_says_nothing_has_an_unknown_cause(how: str) -> None:
    verdict = judged(failed(1, how))
    assert (verdict.failure, verdict.rank, verdict.host, verdict.confidence) == ("unknown", 1, "n0", 0.4)


def test_the_exception_in_a_report_is_that_of_its_rank() -> None:
    """The coordinator has heard of a lost connection first."""
    how = "has failed with exit code 1"
    verdict = judged(failed(3, f"{how}: {LOST}"), failed(0, f"{how}: E: x; y"))
    assert (verdict.failure, verdict.error_type, verdict.rank, verdict.host) == ("user_exception", "E", 0, "n0")
    assert "E: x; y; 1 other rank failed in consequence" in verdict.sentence


def test_what_a_worker_has_written_names_the_cause() -> None:
    report = CycleReport(RANKS, (failed(1),), logs={(1, "1/stderr.log"): ("", "KeyError: 'x'")})
    verdict = verdict_of_cycle(report)
    assert (verdict.failure, verdict.error_type, verdict.rank) == ("user_exception", "KeyError", 1)
    assert (verdict.evidence[0].file, verdict.evidence[0].line) == ("1/stderr.log", 2)


@pytest.mark.parametrize("text", ["[rank7]: KeyError: 'x'", "CUDA out of memory on rank 7", "[Rank 7] NCCL error"])
def test_a_rank_that_the_job_does_not_have_is_not_named(text: str) -> None:
    printed = {(None, "all.log"): ("Traceback (most recent call last):", text)}
    verdict = verdict_of_cycle(CycleReport(RANKS, (failed(1),), logs=printed))
    assert verdict.rank in (1, None)
    assert "rank 7 on" not in verdict.sentence
    assert verdict_of_cycle(CycleReport(RANKS | {7: "n1"}, (), logs=printed)).rank == 7


def test_what_a_restart_in_process_has_followed_is_not_the_cause() -> None:
    lines = ("KeyError: 'x'", "nvrx: restart 1 in 23.4 ms (this rank): EXCEPTION on rank 1", "ValueError: y")
    verdict = verdict_of_cycle(CycleReport(RANKS, (failed(1),), logs={(1, "1/stderr.log"): lines}))
    assert (verdict.error_type, verdict.evidence[0].line) == ("ValueError", 3)


def test_lines_that_are_alike_are_looked_at_once_and_keep_their_numbers() -> None:
    lines = (*(f"step {number} loss 0.{number}" for number in range(200)), "KeyError: 'x'", "step 201 loss 0.201")
    verdict = verdict_of_cycle(CycleReport(RANKS, (failed(1),), logs={(1, "1/stderr.log"): lines}))
    assert (verdict.error_type, verdict.evidence[0].line) == ("KeyError", 201)


def test_text_alone_excludes_no_node() -> None:
    logs = {(3, "stderr.log"): ("RuntimeError: CUDA error: uncorrectable ECC error encountered",)}
    verdict = verdict_of_cycle(CycleReport(RANKS, (failed(3),), logs=logs))
    assert (verdict.failure, verdict.action, verdict.node_to_exclude) == ("ecc_error", Action.RESTART, None)
    assert verdict.sentence.endswith("; restart, and check the node: only text names it")


@pytest.mark.parametrize("text", ["GPU is lost", "Unable to determine the device handle for GPU"])
def test_text_excludes_no_node_where_no_host_is_known(text: str) -> None:
    logs = {(None, "train_cycle0.log"): (text,)}
    verdict = verdict_of_cycle(CycleReport({0: None, 1: None}, (FailureReport(None, "the node is lost"),), logs=logs))
    assert (verdict.action, verdict.node_to_exclude) == (Action.RESTART, None)
    assert verdict.sentence.endswith("; restart, and check the node: only text names it")


def test_a_record_of_the_kernel_excludes_its_node() -> None:
    kernel = {"n1": ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",)}
    verdict = verdict_of_cycle(CycleReport(RANKS, (failed(3),), kernel=kernel))
    assert (verdict.failure, verdict.action, verdict.node_to_exclude) == ("gpu_lost", Action.EXCLUDE_NODE, "n1")


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ("RuntimeError: CUDA error: unknown error", "gpu_lost"),
        ("RuntimeError: r INTERNAL ASSERT FAILED at x.cpp", "gpu_lost"),
        ("AssertionError: x", "assertion"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("KeyError: 3", "user_exception"),
    ],
)
def test_a_gpu_that_was_lost_in_the_cycle_is_the_cause_if_the_ranks_raise_what_follows_from_it(
    error: str, failure: str
) -> None:
    kernel = {"n1": ("NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', GPU has fallen off the bus.",)}
    verdict = verdict_of_cycle(CycleReport(RANKS, (failed(3, f"has failed with exit code 1: {error}"),), kernel=kernel))
    assert verdict.failure == failure
    assert (verdict.node_to_exclude == "n1") is (failure == "gpu_lost")
    of_program = {"n1": ("NVRM: Xid (PCI:0000:02:00): 31, pid=7, name=other, MMU Fault",)}
    verdict = verdict_of_cycle(CycleReport(RANKS, (failed(3, "has failed with exit code 1: E: x"),), kernel=of_program))
    assert verdict.failure == "user_exception"


def test_what_a_rank_prints_after_its_exception_need_not_be_steps() -> None:
    lines = [
        "Traceback (most recent call last):",
        "  File 'a'",
        "KeyError: 1",
        *(f"batch {n}: id {n}" for n in range(40)),
    ]
    verdict = verdict_of_cycle(CycleReport(RANKS, (failed(1),), logs={(1, "o1"): tuple(lines)}))
    assert (verdict.failure, verdict.rank) == ("user_exception", 1)


def test_events_count_and_so_does_the_signal_that_ended_the_launcher() -> None:
    event = (
        '{"event": "fault", "host": "n1", "pid": 9, "rank": 2, "faulty_initial_rank": 2, "interruption": "EXCEPTION",'
        ' "message": "ValueError: x"}'
    )
    assert verdict_of_cycle(CycleReport(RANKS, events=(event,))).rank == 2
    assert verdict_of_cycle(CycleReport(RANKS, stopped_by="SIGTERM")).failure == "operator_kill"


def test_a_signal_to_the_launcher_is_the_cause_of_what_the_same_signal_has_done_to_workers() -> None:
    logs = {(2, "2/stderr.log"): ("[rank2]: Received SIGTERM, saving a checkpoint", "KeyboardInterrupt")}
    failures = (failed(2, "was ended by SIGTERM"), FailureReport("n1", "the launcher has received signal 15"))
    verdict = verdict_of_cycle(CycleReport(RANKS, failures, logs=logs, stopped_by="SIGTERM"))
    assert (verdict.failure, verdict.rank, verdict.action) == ("operator_kill", None, Action.STOP)
    at_limit = verdict_of_cycle(CycleReport(RANKS, failures, logs=logs, stopped_by="SIGTERM", is_at_limit=True))
    assert (at_limit.failure, at_limit.rank, at_limit.action) == ("time_limit", None, Action.RESTART)
    crash = (failed(1, "was ended by SIGSEGV"), *failures)
    before = verdict_of_cycle(CycleReport(RANKS, crash, stopped_by="SIGTERM", is_at_limit=True))
    assert (before.failure, before.rank) == ("segmentation_fault", 1)


def test_an_exception_that_names_a_signal_was_not_ended_by_the_one_to_the_launcher() -> None:
    failures = (failed(1, "has failed with exit code 1: AssertionError: child was ended by SIGTERM, at train.py:7"),)
    verdict = verdict_of_cycle(CycleReport(RANKS, failures, stopped_by="SIGTERM"))
    assert (verdict.failure, verdict.rank) == ("assertion", 1)
    interrupted = (failed(1, "has failed with exit code 1: KeyboardInterrupt, at train.py:7"),)
    assert verdict_of_cycle(CycleReport(RANKS, interrupted, stopped_by="SIGINT")).failure == "operator_kill"


def test_a_hang_that_was_judged_before_the_signal_is_why_the_job_was_cancelled() -> None:
    hang = HangVerdict(HangOutcome.CULPRITS, (2,), (), 0.6, "rank 2 (n1) stands at train.py:9 in load for 12 s")
    verdict = verdict_of_cycle(CycleReport(RANKS, hang=hang, stopped_by="SIGTERM"))
    assert (verdict.failure, verdict.rank, verdict.confidence) == ("hang", 2, 0.6)


def test_text_of_a_scheduler_says_which_kind_of_end_it_was() -> None:
    logs = {(None, "train_cycle0.log"): ("slurmstepd: error: *** STEP 7.0 ON n0 CANCELLED AT x DUE TO PREEMPTION ***",)}
    verdict = verdict_of_cycle(CycleReport(RANKS, logs=logs, stopped_by="SIGTERM"))
    assert (verdict.failure, verdict.action) == ("preemption", Action.RESTART)


def test_where_the_kernels_of_several_nodes_have_such_records_none_is_excluded() -> None:
    xid = ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",)
    report = CycleReport(RANKS, (failed(3),), kernel={"n0": xid, "n1": xid})
    verdict = verdict_of_cycle(report)
    assert (verdict.failure, verdict.host, verdict.action) == ("gpu_lost", "n1", Action.RESTART)
    assert verdict.sentence.endswith("; restart, and check the nodes: the kernels of n0, n1 have such records")
    many = verdict_of_cycle(replace(report, kernel={f"n{number}": xid for number in range(1000)}))
    assert many.sentence.endswith(": the kernels of n0, n1, n10, n100 and 996 more have such records")
    noise = verdict_of_cycle(replace(report, kernel={"n0": ("Out of memory: Killed process 9 (x)",), "n1": xid}))
    assert (noise.failure, noise.node_to_exclude) == ("gpu_lost", "n1")


@pytest.mark.parametrize(
    ("why", "failure"),
    [
        ("node 1 has not moved its lease for 5 s", "peer_lost"),
        ("the launcher has received signal 15", "operator_kill"),
        ("the store has left no trace", "unknown"),
    ],
)
def test_a_node_that_is_lost_or_leaves_is_named(why: str, failure: str) -> None:
    verdict = judged(FailureReport("n1", why))
    assert (verdict.failure, verdict.rank, verdict.host, verdict.action) == (failure, None, "n1", Action.RESTART)
    assert why in verdict.sentence


def test_a_cycle_that_a_fault_has_ended_is_never_clean() -> None:
    for report in (CycleReport(RANKS), CycleReport(RANKS, logs={(0, "out"): ("step 1",)})):
        verdict = verdict_of_cycle(report)
        assert (verdict.failure, verdict.host, verdict.confidence) == ("unknown", None, 0.0)
        assert verdict.sentence == "the cause is unknown; restart"


@pytest.mark.parametrize(("ranks", "host"), [({0: "n0", 1: "n0", 2: "n1", 3: "n1"}, None), ({0: "n0", 2: "n0"}, "n0")])
def test_no_node_is_named_for_ranks_that_hang_alike(ranks: dict[int, str], host: str | None) -> None:
    text = "rank {} (local rank 0, pid 7) was ended by SIGKILL, hung: no heartbeat for 60 s; it waits in all_reduce"
    found = verdict_of_cycle(
        CycleReport(ranks, tuple(FailureReport(ranks[each], text.format(each)) for each in (0, 2)))
    )
    assert (found.failure, found.rank, found.host) == ("hang", None, host)


@pytest.mark.parametrize(
    ("where", "rank"),
    [
        ("at distributed_c10d.py:3 all_reduce < train.py:9 step, as far as rank 0, its slowest peer", None),
        ("at distributed_c10d.py:3 all_reduce < train.py:9 step, 1 step behind rank 0, its slowest peer", 3),
        ("at train.py:5 load < train.py:9 step", 3),
    ],
)
def test_the_first_rank_that_is_reported_to_wait_for_others_is_not_to_blame(where: str, rank: int | None) -> None:
    text = f"rank 3 (local rank 1, pid 7) was ended by SIGKILL, hung: no heartbeat for 60 s, {where}"
    ranks = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
    found = verdict_of_cycle(CycleReport(ranks, (FailureReport("n1", text),)))
    assert (found.failure, found.rank, found.host) == ("hang", rank, "n1" if rank else None)


HANG = "rank 2 (n1) stands at train.py:9 in load for 12 s, waiting for a lock; ranks 0-1, 3 wait for it"


def hang(sentence: str, *culprits: int, confidence: float = 0.0) -> HangVerdict:
    return HangVerdict(HangOutcome.CULPRITS if culprits else HangOutcome.ALIKE, culprits, (), confidence, sentence)


def test_the_line_of_a_hang_counts_more_than_which_rank_was_ended_for_it() -> None:
    """The timer of a rank that waits in a collective has run out first."""
    ended = failed(0, "was ended by SIGKILL, hung: no heartbeat for 45.0 s: at a: b")
    named = verdict_of_cycle(CycleReport(RANKS, (ended,), hang=hang(HANG, 2, confidence=0.57)))
    assert (named.failure, named.rank, named.host) == ("hang", 2, "n1")
    assert named.evidence[0].text == f"hang: {HANG}"
    assert named.confidence == 0.57


@pytest.mark.parametrize(
    "line",
    [
        "all ranks are alike, none is to blame; ranks 0-3 at train.py:9 in load",
        "no rank is behind: all have begun what they wait in; ranks 0-3 wait in all_reduce #5",
        "the ranks wait for each other; ranks 0-3 wait in recv",
        "the ranks call different collectives, as number 5 of one group; rank 0 waits in barrier",
    ],
)
def test_a_hang_for_which_nobody_is_to_blame_has_no_culprit_though_a_rank_was_ended(line: str) -> None:
    ended = failed(0, "was ended by SIGKILL, hung: no heartbeat for 45.0 s: at a: b")
    verdict = verdict_of_cycle(CycleReport(RANKS, (ended,), hang=hang(line)))
    assert (verdict.failure, verdict.rank) == ("hang", None)


def test_a_rank_without_a_report_may_be_named() -> None:
    line = "rank 3 has not joined the others, or they wait for each other; no report of rank 3 in time"
    ended = failed(0, "was ended by SIGKILL, hung: no heartbeat for 45.0 s")
    assert verdict_of_cycle(CycleReport(RANKS, (ended,), hang=hang(line, 3, confidence=0.6))).rank == 3


def test_where_it_is_not_known_who_is_to_blame_the_monitors_own_lines_count() -> None:
    ended = failed(1, "was ended by SIGKILL, hung: no heartbeat for 45.0 s, at train.py:9 load")
    line = "who is to blame is not known; no report of ranks 0-3 in time"
    assert verdict_of_cycle(CycleReport(RANKS, (ended,), hang=hang(line))).rank == 1


def test_an_exception_that_a_worker_has_printed_last_has_its_class() -> None:
    found = verdict_of_cycle(
        CycleReport({0: None}, (failed(0, "has failed with exit code 1; it printed last: MemoryError, at train.py:3"),))
    )
    raised = verdict_of_cycle(
        CycleReport({0: None}, (failed(0, "has failed with exit code 1: MemoryError, at train.py:3"),))
    )
    assert (found.failure, found.error_type, found.rank) == (raised.failure, raised.error_type, 0)
    assert found.failure != "unknown"


@pytest.mark.parametrize("ends", [(), ("has failed with exit code 2",), ("was ended by SIGSEGV",)])
def test_a_cycle_that_is_not_retried_has_no_verdict_that_says_restart(ends: tuple[str, ...]) -> None:
    failures = tuple(failed(1, how) for how in ends)
    verdict = verdict_of_cycle(CycleReport(RANKS, failures, is_retried=False))
    assert (judged(*failures).action, verdict.action) == (Action.RESTART, Action.STOP)
    assert verdict.sentence == judged(*failures).sentence.replace("; restart", "; stop, and correct it first")
