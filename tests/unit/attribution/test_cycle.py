"""The verdict of a cycle from what a launcher knows."""

from __future__ import annotations

from nvrx_core.attribution.cycle import CycleReport, RankEnd, verdict_of_cycle
from nvrx_core.attribution.verdict import Action

RANKS = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
LOST = "RuntimeError: [gloo/x] Connection closed by peer [127.0.0.1]:1"


def test_the_first_end_counts_by_its_signal() -> None:
    ends = (RankEnd(0, "n0", 7, 1), RankEnd(2, "n1", 9, -11, is_first=True))
    verdict = verdict_of_cycle(CycleReport(RANKS, ends, logs={(0, "0/stderr.log"): (LOST,)}))
    assert (verdict.failure, verdict.rank, verdict.host) == ("segmentation_fault", 2, "n1")
    assert verdict.evidence[0].text == "rank 2 (local rank ?, pid 9) was ended by SIGSEGV"


def test_a_kill_by_the_oom_killer_and_one_by_a_rank_monitor_are_told_apart() -> None:
    by_kernel = RankEnd(2, "n1", 9, -9, out_of_memory=True)
    assert verdict_of_cycle(CycleReport(RANKS, (by_kernel,))).failure == "host_out_of_memory"
    by_monitor = RankEnd(2, "n1", 9, -9, hung="no heartbeat for 45.0 s")
    verdict = verdict_of_cycle(CycleReport(RANKS, (by_monitor,)))
    assert (verdict.failure, verdict.rank) == ("hang", 2)


def test_a_signal_without_a_name_is_unknown() -> None:
    assert verdict_of_cycle(CycleReport(RANKS, (RankEnd(1, "n0", 7, -40),))).failure == "unknown"


def test_what_a_worker_has_written_names_the_cause() -> None:
    report = CycleReport(RANKS, (RankEnd(1, "n0", 7, 1),), logs={(1, "1/stderr.log"): ("", "KeyError: 'x'")})
    verdict = verdict_of_cycle(report)
    assert (verdict.failure, verdict.error_type, verdict.rank) == ("user_exception", "KeyError", 1)
    assert (verdict.evidence[0].file, verdict.evidence[0].line) == ("1/stderr.log", 2)


def test_text_alone_excludes_no_node() -> None:
    logs = {(3, "stderr.log"): ("RuntimeError: CUDA error: uncorrectable ECC error encountered",)}
    verdict = verdict_of_cycle(CycleReport(RANKS, (RankEnd(3, "n1", 9, 1),), logs=logs))
    assert (verdict.failure, verdict.action, verdict.node_to_exclude) == ("ecc_error", Action.RESTART, None)
    assert verdict.sentence.endswith("; restart, and check the node: only text names it")


def test_a_record_of_the_kernel_excludes_its_node() -> None:
    kernel = {"n1": ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",)}
    verdict = verdict_of_cycle(CycleReport(RANKS, (RankEnd(3, "n1", 9, 1),), kernel=kernel))
    assert (verdict.failure, verdict.action, verdict.node_to_exclude) == ("gpu_lost", Action.EXCLUDE_NODE, "n1")


def test_events_count_and_so_does_the_signal_that_ended_the_launcher() -> None:
    event = (
        '{"event": "fault", "host": "n1", "pid": 9, "rank": 2, "faulty_initial_rank": 2, "interruption": "EXCEPTION",'
        ' "message": "ValueError: x"}'
    )
    assert verdict_of_cycle(CycleReport(RANKS, events=(event,))).rank == 2
    assert verdict_of_cycle(CycleReport(RANKS, stopped_by="SIGTERM")).failure == "operator_kill"
    assert verdict_of_cycle(CycleReport(RANKS)).failure == "unknown"
