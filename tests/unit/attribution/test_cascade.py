"""The first fault among its consequences, and the rank that it is of."""

from __future__ import annotations

import pytest

from nvrx_core.attribution.verdict import Action, Verdict
from tests.attribution.cases import verdict_of_logs, verdict_of_text

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"
AGENT = "E0101 00:00:01.0 9 torch/x/api.py:869] failed (exitcode: {0}) local_rank: 1 (pid: 77) of binary: python"
TRACE = "Traceback (most recent call last):\n[rank{0}]:   File 'a', line 1\n[rank{0}]: "


def _said(verdict: Verdict) -> tuple[str, int | None]:
    return verdict.failure, verdict.rank


def test_lost_connections_are_consequences_wherever_they_come_first() -> None:
    text = f"[rank0]: {LOST}\n[rank2]: {LOST}\n[rank1]: KeyError: 'x'"
    verdict = verdict_of_text(text)
    assert _said(verdict) == ("user_exception", 1)
    assert verdict.error_type == "KeyError"
    assert verdict.sentence.endswith("; 2 other ranks failed in consequence; restart")


def test_a_host_that_has_lost_another_one_is_not_named() -> None:
    verdict = verdict_of_text("node1: [rank0]: RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:1\n")
    assert (verdict.failure, verdict.rank, verdict.host) == ("peer_lost", None, None)


def test_one_other_rank_is_counted_in_the_singular() -> None:
    assert "; 1 other rank failed" in verdict_of_text(f"[rank0]: {LOST}\n[rank1]: KeyError: 'x'").sentence


def test_an_error_after_a_lost_connection_on_the_same_rank_is_a_consequence() -> None:
    text = f"[rank0]: {LOST}\n[rank0]: KeyError: 'x'\n[rank1]: ValueError: y"
    assert _said(verdict_of_text(text)) == ("user_exception", 1)


def test_of_two_failures_in_one_file_the_first_line_counts() -> None:
    verdict = verdict_of_text("[rank1]: KeyError: 'x'\n[rank0]: ValueError: y")
    assert (verdict.rank, verdict.confidence) == (1, 0.68)


def test_of_two_failures_in_two_files_the_earlier_counts() -> None:
    first = "2024-01-01 00:00:09 step 1\nKeyError: 'x'"
    second = "2024-01-01 00:00:05 step 1\nValueError: y"
    assert verdict_of_logs({"rank0.log": first, "rank1.log": second}).rank == 1


def test_clocks_of_hosts_are_aligned_by_the_steps_they_report() -> None:
    ahead = "\n".join(f"2024-01-01 00:10:{step:02} node1 [rank0] step {step}" for step in range(1, 9))
    right = "\n".join(f"2024-01-01 00:00:{step:02} node2 [rank1] step {step}" for step in range(1, 9))
    logs = {
        "a.log": f"{ahead}\n2024-01-01 00:10:10 node1 [rank0] KeyError: 'x'",
        "b.log": f"{right}\n2024-01-01 00:00:30 node2 [rank1] ValueError: y",
    }
    assert verdict_of_logs(logs).rank == 0


def test_a_host_with_few_steps_in_common_is_not_aligned() -> None:
    logs = {
        "a.log": "2024-01-01 00:10:01 node1 [rank0] step 1\n2024-01-01 00:10:10 node1 [rank0] KeyError: 'x'",
        "b.log": "2024-01-01 00:00:01 node2 [rank1] step 1\n2024-01-01 00:00:30 node2 [rank1] ValueError: y",
    }
    assert verdict_of_logs(logs).rank == 1


def test_without_times_what_names_a_cause_goes_before_what_does_not() -> None:
    logs = {"rank0.log": "KeyError: 'x'", "rank1.log": "OSError: [Errno 28] No space left on device"}
    assert _said(verdict_of_logs(logs)) == ("disk_full", 1)


def test_what_all_ranks_report_is_of_no_rank() -> None:
    text = "".join(f"[rank{rank}]: ModuleNotFoundError: No module named 'x'\n" for rank in range(3))
    verdict = verdict_of_text(text)
    assert _said(verdict) == ("missing_module", None)
    assert verdict.sentence.startswith("every rank lacks a module: ")


def test_the_cause_in_one_chain_of_exceptions_is_the_exact_one() -> None:
    chain = "\n\n[rank1]: During handling of the above exception, another exception occurred:\n\n[rank1]: "
    text = "[rank1]: " + TRACE.format(1) + "OSError: [Errno 28] No space left on device" + chain
    text += TRACE.format(1) + "ValueError: cannot save"
    assert verdict_of_text(text).error_type == "OSError"
    reverse = "[rank1]: " + TRACE.format(1) + "KeyError: 1" + chain + TRACE.format(1) + "FileNotFoundError: 'x'"
    assert verdict_of_text(reverse).failure == "missing_file"


def test_of_a_chain_of_exceptions_without_a_rule_the_last_counts() -> None:
    text = TRACE.format(1) + "KeyError: 1\nDuring handling of the above exception, another exception occurred:\n"
    text = "[rank1]: " + text + "[rank1]: " + TRACE.format(1) + "RuntimeError: worse"
    assert verdict_of_text(text.replace("\nDuring", "\n[rank1]: During")).error_type == "RuntimeError"


def test_an_exception_raised_from_a_lost_connection_is_a_consequence() -> None:
    chain = "\n[rank1]: The above exception was the direct cause of the following exception:\n[rank1]: "
    text = f"[rank0]: {LOST}\n[rank1]: " + TRACE.format(1) + LOST + chain + TRACE.format(1) + "ValueError: sync failed"
    assert verdict_of_text(text).failure == "peer_lost"


def test_the_rank_that_torchrun_names_first_goes_before_others() -> None:
    text = "[rank0]: ValueError: y\n[rank1]: KeyError: 'x'\n" + AGENT.format(1)
    verdict = verdict_of_text(text)
    assert (verdict.rank, verdict.confidence) == (1, 0.85)


def test_a_kill_that_torchrun_names_first_goes_before_an_exception() -> None:
    text = "[rank0]: ValueError: collective failed\n" + AGENT.format(-11)
    assert _said(verdict_of_text(text)) == ("segmentation_fault", 1)


def test_a_kill_without_a_rank_is_one() -> None:
    verdict = verdict_of_text("Killed")
    assert (verdict.failure, verdict.rank, verdict.action) == ("operator_kill", None, Action.RESTART)
    assert verdict.sentence.startswith("a rank was ended from outside")


def test_the_oom_killer_is_matched_with_the_rank_that_was_killed() -> None:
    logs = {
        "run.log": "E0101 00:00:01.0 9 torch/x/api.py:1] failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: p",
        "dmesg": "[ 1.000] Out of memory: Killed process 77 (python)",
        "other": "Jan  1 00:00:01 n7 kernel: [ 1.000] oom-kill:constraint=X,task=python,pid=78,uid=0",
    }
    verdict = verdict_of_logs(logs)
    assert (verdict.failure, verdict.rank, verdict.host) == ("host_out_of_memory", 3, "n7")
    by_kill = {**logs, "dmesg": "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0"}
    assert _said(verdict_of_logs(by_kill)) == ("host_out_of_memory", 3)


def test_a_lost_gpu_is_matched_with_the_rank_that_had_an_error_of_cuda() -> None:
    logs = {
        "dmesg": "Jun  3 02:11:07 n17 kernel: NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
        "run.log": "[rank3]: RuntimeError: CUDA error: unspecified launch failure\n[rank0]: ValueError: x",
    }
    verdict = verdict_of_logs(logs)
    assert (verdict.failure, verdict.rank, verdict.node_to_exclude) == ("gpu_lost", 3, "n17")
    assert verdict.action is Action.EXCLUDE_NODE


CANCELLED = "slurmstepd: error: *** STEP 7.0 ON cn4 CANCELLED AT 2024-01-01T00:00:00 ***"
LIMIT = "slurmstepd: error: *** JOB 7 ON cn4 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***"


@pytest.mark.parametrize(
    ("text", "failure", "rank"),
    [
        (f"{CANCELLED}\n[rank1]: {LOST}", "operator_kill", None),
        (f"[rank1]: KeyError: 1\n{CANCELLED}", "user_exception", 1),
        (f"{LIMIT}\n[rank1]: KeyError: 1", "time_limit", None),
        (f"[rank1]: {LOST}\n[rank0]: step 3\n{CANCELLED}", "peer_lost", 0),
        (f"[rank1]: {LOST}\n{LIMIT}", "time_limit", None),
        (f"[rank1]: KeyboardInterrupt\n[rank0]: {LOST}", "operator_kill", 1),
        (f"{CANCELLED}\n{LIMIT}", "time_limit", None),
        (f"srun: error: cn4: task 2: Killed\n{CANCELLED}", "operator_kill", 2),
    ],
)
def test_what_ends_a_job_from_outside_counts_unless_it_has_failed_before(
    text: str, failure: str, rank: int | None
) -> None:
    assert _said(verdict_of_text(text)) == (failure, rank)


def test_a_cause_in_another_file_goes_before_the_end_of_the_job() -> None:
    logs = {"slurm.out": LIMIT, "rank0.log": "torch.OutOfMemoryError: CUDA out of memory"}
    assert _said(verdict_of_logs(logs)) == ("cuda_out_of_memory", 0)
    logs = {"slurm.out": LIMIT, "rank0.log": "KeyError: 1"}
    assert verdict_of_logs(logs).failure == "time_limit"


def test_a_rank_that_ended_without_a_word_goes_before_those_that_lost_it() -> None:
    text = f"[rank0]: {LOST}\n[rank2]: {LOST}\nsrun: error: n1: task 1: Exited with exit code 3"
    verdict = verdict_of_text(text)
    assert (verdict.failure, verdict.rank, verdict.host) == ("unknown", 1, "n1")


def test_a_rank_whose_words_have_no_prefix_is_not_taken_for_silent() -> None:
    text = f"{LOST}\nsrun: error: n1: task 1: Exited with exit code 1"
    assert _said(verdict_of_text(text)) == ("peer_lost", None)


def test_the_only_rank_that_lost_no_other_is_the_lost_one() -> None:
    text = f"[rank0]: step 1\n[rank1]: step 1\n[rank2]: step 1\n[rank0]: {LOST}\n[rank2]: {LOST}"
    assert _said(verdict_of_text(text)) == ("peer_lost", 1)


TIMEOUT = "Timed out waiting 6000ms for recv operation to complete"


def test_the_only_rank_that_did_not_wait_is_the_one_that_hung() -> None:
    ranks = "".join(f"[rank{rank}]: step 1\n" for rank in range(3))
    assert _said(verdict_of_text(f"{ranks}[rank0]: {TIMEOUT}\n[rank1]: {TIMEOUT}")) == ("hang", 2)
    assert _said(verdict_of_text(f"{ranks}[rank0]: {TIMEOUT}\n[rank1]: {LOST}")) == ("hang", 2)
    assert _said(verdict_of_text(f"{ranks}[rank0]: {TIMEOUT}")) == ("hang", None)


HUNG = (
    "2026-11-24 21:04:26,2 ERROR [rank monitor] rank {0} (pid 14{0}) is hung: no heartbeat for 5 s, at {1}; it is sent"
)


def test_of_hung_ranks_the_one_that_did_not_wait_for_others_is_named() -> None:
    waits = HUNG.format(0, "graph.py:979 _engine_run_backward < tensor.py:3 backward")
    alone = HUNG.format(1, "threading.py:327 wait < train.py:43 train")
    agent = AGENT.format(-9).replace("local_rank: 1", "local_rank: 0")
    assert _said(verdict_of_text(f"{waits}\n{alone}\n{agent}")) == ("hang", 1)
    assert _said(verdict_of_text(f"{alone}\n{AGENT.format(-9)}")) == ("hang", 1)
    both = verdict_of_text(f"{waits}\n{waits.replace('rank 0', 'rank 1')}\n{agent}")
    assert _said(both) == ("hang", None)


def test_the_line_of_a_hang_in_process_names_rank_and_host() -> None:
    line = (
        "ERROR hang: rank 3 (node7) stands at train.py:88 in next_batch for 12.4 s, waiting for a lock; "
        "ranks 0-2 wait for it in all_reduce #57 of the default group"
    )
    found = verdict_of_text(
        f"{line}\nWARNING SOFT_TIMEOUT on rank 0 (initial rank 0, node1 pid 7): no progress for 12 s"
    )
    assert (found.failure, found.rank, found.host) == ("hang", 3, "node7")


WATCHDOG = (
    "[rank{0}]:[E1 ProcessGroupNCCL.cpp:1] [PG {2} Rank {0}] Exception (either an error or timeout) detected by"
    " watchdog at work: 1, last enqueued NCCL work: {1}, last completed NCCL work: 1."
)
CAUGHT = "[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"


def test_the_rank_that_is_behind_in_its_collectives_is_named() -> None:
    lines = [WATCHDOG.format(rank, 5 if rank != 2 else 4, 1) for rank in range(3)]
    other_group = WATCHDOG.format(0, 1, 2)
    assert _said(verdict_of_text("\n".join([CAUGHT, *lines, lines[0], other_group]))) == ("nccl_timeout", 2)
    alike = [WATCHDOG.format(rank, 5, 1) for rank in range(3)]
    assert _said(verdict_of_text("\n".join([CAUGHT, *alike]))) == ("nccl_timeout", None)


def test_an_error_of_nccl_is_of_the_rank_only_if_no_other_has_one() -> None:
    one = "[rank1]: ncclSystemError: System call failed"
    assert _said(verdict_of_text(one)) == ("nccl_error", 1)
    assert _said(verdict_of_text(f"{one}\n[rank2]: ncclSystemError: x")) == ("nccl_error", None)


def test_a_loss_that_is_not_a_number_counts_if_nothing_else_does() -> None:
    assert verdict_of_text("loss: nan\nloss: nan").failure == "nan_loss"
    assert verdict_of_text("loss: nan\nFatal Python error: Aborted").failure == "unknown"


def test_the_last_cycle_that_failed_counts() -> None:
    text = (
        "INFO [ft_launcher] cycle 0: 1 nodes\n"
        "[rank0]: KeyError: 1\n"
        "INFO [ft_launcher] cycle 1: 1 nodes\n"
        "[rank1]: ValueError: x"
    )
    assert verdict_of_text(text).rank == 1
    torchrun = "[rank0]: KeyError: 1\nWorker group default FAILED. 2/3 attempts left; will restart worker group\nstep 1"
    assert verdict_of_text(torchrun).rank == 0
    logs = {"attempt_0/0/stderr.log": "KeyError: 1", "attempt_1/1/stderr.log": "ValueError: x", "run.log": "step 1"}
    assert verdict_of_logs(logs).rank == 1


def test_a_local_rank_is_named_as_the_rank_that_torchrun_gives_it() -> None:
    text = (
        "[default1]:ValueError: x\n"
        "Failures:\n"
        "  time      : 2024-01-01_00:00:01\n"
        "  host      : n2\n"
        "  rank      : 5 (local_rank: 1)\n"
        "  exitcode  : 1 (pid: 9)"
    )
    verdict = verdict_of_text(text)
    assert (verdict.rank, verdict.host) == (5, "n2")


def test_logs_without_lines_are_unknown_and_others_clean() -> None:
    assert verdict_of_text("").failure == "unknown"
    verdict = verdict_of_text("step 1")
    assert (verdict.failure, verdict.action, verdict.evidence) == ("clean", Action.NONE, ())


def test_a_local_rank_that_is_that_of_several_ranks_names_none() -> None:
    text = "[default1]:[rank1]: step 1\n[default1]:[rank5]: step 1\n[default1]:ValueError: x\n[default0]:step 1"
    assert _said(verdict_of_text(text)) == ("user_exception", None)


def test_a_local_rank_is_no_further_rank() -> None:
    text = f"[default1]:step 1\n[default0]:step 1\n[default0]:[rank4]: {LOST}\n[default1]:[rank5]: {LOST}"
    assert _said(verdict_of_text(text)) == ("peer_lost", None)


def test_the_sentence_is_bounded_and_shows_no_control_characters() -> None:
    sentence = verdict_of_text("[rank0]: ValueError: \x1b[2J" + "long " * 200).sentence
    assert len(sentence) < 260
    assert sentence.isprintable()
