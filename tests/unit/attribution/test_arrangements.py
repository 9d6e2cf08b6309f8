"""Arrangements of lines, each with the verdict that is right, by what a job's programs print and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_core.attribution.classification import Classifier
from nvrx_core.attribution.cycle import CycleReport, FailureReport, verdict_of_cycle
from nvrx_core.attribution.origin import parse
from nvrx_core.attribution.reading import verdict_of_files
from nvrx_core.attribution.verdict import Action, Verdict
from tests.attribution.cases import verdict_of_logs

RANKS = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    main()\n'
HANDLER = "Received SIGTERM, writing a last checkpoint"
ENDED = "rank {0} (local rank {1}, pid 4{0}) {2}"
SEGV, EXIT = "was ended by SIGSEGV", "has failed with exit code 1"


def cycle(rank: int, how: str, **logs: str) -> Verdict:
    """Return the verdict of a cycle in which a launcher has reported the end of a rank; logs are by `r1`, `all`."""
    report = FailureReport(RANKS[rank], ENDED.format(rank, rank % 2, how))
    output = {
        (None if name == "all" else int(name[1:]), f"{name}.log"): tuple(text.split("\n"))
        for name, text in logs.items()
    }
    return verdict_of_cycle(CycleReport(RANKS, (report,), logs=output))


def said(verdict: Verdict) -> tuple[str, int | None]:
    return verdict.failure, verdict.rank


@pytest.mark.parametrize(
    ("verdict", "failure", "rank"),
    [
        (cycle(3, SEGV, r1=HANDLER), "segmentation_fault", 3),
        (cycle(3, SEGV, r0=HANDLER, r1=HANDLER, r2=HANDLER), "segmentation_fault", 3),
        (cycle(3, SEGV, r1=f"{TRACE}KeyboardInterrupt"), "segmentation_fault", 3),
        (cycle(3, SEGV, r1=f"2026-07-03 10:00:01,000 INFO {HANDLER}"), "segmentation_fault", 3),
        (cycle(3, f"{EXIT}: ValueError: bad sample", r1=HANDLER), "user_exception", 3),
        (cycle(3, f"{EXIT}: torch.OutOfMemoryError: CUDA out of memory.", r1=HANDLER), "cuda_out_of_memory", 3),
        (cycle(3, EXIT, r1=HANDLER), "unknown", 3),
        (cycle(3, EXIT, r1=HANDLER, r3=f"{TRACE}ValueError: bad sample"), "user_exception", 3),
        (cycle(3, EXIT, all=f"3: {TRACE}3: ValueError: bad\n1: {HANDLER}".replace("\n  ", "\n3:   ")),
         "user_exception", 3),
        (cycle(3, EXIT, all=f"3: step 5\n1: {HANDLER}"), "unknown", 3),
        (cycle(3, "was ended by SIGKILL, hung: no heartbeat for 12 s", r1=HANDLER), "hang", 3),
        (cycle(3, EXIT, r3=f"{TRACE}KeyboardInterrupt"), "operator_kill", 3),
        (cycle(3, EXIT, r3="Caught signal SIGINT"), "operator_kill", 3),
    ],
)  # fmt: skip
def test_that_a_rank_was_sent_a_signal_is_a_consequence_of_what_the_launcher_reports(
    verdict: Verdict, failure: str, rank: int
) -> None:
    assert said(verdict) == (failure, rank)
    assert verdict.action is not Action.STOP or failure == "cuda_out_of_memory"


def test_a_job_is_not_stopped_for_an_interrupt_that_text_alone_tells_of() -> None:
    verdict = cycle(3, EXIT, r3=f"{TRACE}KeyboardInterrupt")
    assert verdict.action is Action.RESTART
    assert verdict.sentence.endswith("; restart: only text says so")
    by_launcher = verdict_of_cycle(CycleReport(RANKS, stopped_by="SIGTERM"))
    assert by_launcher.action is Action.STOP


@pytest.mark.parametrize(
    ("logs", "failure", "rank"),
    [
        ({"rank0.log": HANDLER, "rank2.log": f"{TRACE}ValueError: bad"}, "user_exception", 2),
        ({"rank0.log": HANDLER, "run.log": "srun: error: n7: task 2: Segmentation fault"}, "segmentation_fault", 2),
        ({"rank0.log": f"2026-07-03 10:00:01 {HANDLER}", "rank2.log": "2026-07-03 10:00:04 ValueError: at exit"},
         "operator_kill", 0),
        ({"run.log": f"[rank0]: {HANDLER}\n[rank2]: ValueError: at exit"}, "operator_kill", 0),
        ({"run.log": f"[rank2]: RuntimeError: Connection closed by peer\n[rank0]: {HANDLER}\n[rank1]: step 1"},
         "peer_lost", None),
        ({"rank0.log": f"{TRACE}KeyboardInterrupt", "rank1.log": f"{TRACE}KeyboardInterrupt",
          "run.log": "W0703 10:00:02.0 9 x.py:719] Received Signals.SIGINT death signal, shutting down workers\n"
                     "E0703 10:00:03.0 9 torch/api.py:863] failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: py"},
         "operator_kill", None),
    ],
)  # fmt: skip
def test_a_printed_signal_goes_before_a_failure_only_if_it_is_known_to_be_earlier(
    logs: dict[str, str], failure: str, rank: int | None
) -> None:
    assert said(verdict_of_logs(logs)) == (failure, rank)


CANCELLED = "slurmstepd: error: *** STEP 4711.0 ON n0 CANCELLED AT 2026-07-03T10:00:02 ***"
FAILED = "srun: error: n1: task 3: Exited with exit code 1"
OTHERS = "srun: error: n0: tasks 0-2: Terminated"
AGENT = "E0703 10:00:02.0 9 torch/api.py:863] failed (exitcode: 1) local_rank: 2 (pid: 9) of binary: python"


@pytest.mark.parametrize(
    ("logs", "failure", "rank"),
    [
        ({"slurm.out": f"{FAILED}\n{CANCELLED}\n{OTHERS}"}, "unknown", 3),
        ({"slurm.out": f"{FAILED}\n{OTHERS}\nsrun: Force Terminated StepId=4711.0"}, "unknown", 3),
        ({"slurm.out": f"{FAILED}\n0: {HANDLER}\n1: {HANDLER}"}, "unknown", 3),
        ({"slurm.out": "srun: error: n0: tasks 0-3: Exited with exit code 1\n" + CANCELLED}, "unknown", None),
        ({"a.out": f"{FAILED}\n{OTHERS}", "b.err": f"3: {TRACE}3: ValueError: bad".replace("\n  ", "\n3:   ")},
         "user_exception", 3),
        ({"slurm.out": f"{FAILED}\n{CANCELLED.replace(' ***', ' DUE TO TIME LIMIT ***')}"}, "unknown", 3),
        ({"slurm.out": f"{CANCELLED}\n{OTHERS}\n{FAILED}"}, "operator_kill", None),
        ({"run.log": f"[default2]:step 1\n[default1]:{HANDLER}\n{AGENT}"}, "unknown", 2),
        ({"run.log": f"{HANDLER}\n{AGENT}"}, "unknown", 2),
        ({"run.log": f"{HANDLER}\nSomething died\nexits with return code = 3"}, "operator_kill", None),
    ],
)  # fmt: skip
def test_that_launchers_end_the_others_is_a_consequence_of_an_exit_with_a_code(
    logs: dict[str, str], failure: str, rank: int | None
) -> None:
    verdict = verdict_of_logs(logs)
    assert said(verdict) == (failure, rank)
    if rank == 3:
        assert verdict.host in {"n1", None}


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def steps(first: int, last: int, prefix: str = "") -> str:
    return "".join(f"{prefix}step {step} loss 1.{step}\n" for step in range(first, last))


SAMPLE = "sample 17: the user writes: No space left on device, what now?"
SMALLER = "CUDA out of memory at batch size 64, trying 32"
PRINTED = f"{TRACE}KeyError: 'caption'\n"


@pytest.mark.parametrize(
    ("text", "failure", "rank"),
    [
        (f"{steps(0, 50)}{SAMPLE}\n{steps(50, 2000)}", "clean", None),
        (f"{steps(0, 50)}{PRINTED}{steps(50, 2000)}", "clean", None),
        (f"{steps(0, 50)}[rank0]: Connection reset by peer\n{steps(50, 90, '[rank0]: ')}", "clean", None),
        (f"{SMALLER}\n{steps(0, 40)}[rank1]: {TRACE}[rank1]: ValueError: bad", "user_exception", 1),
        (f"{steps(0, 50)}{PRINTED}{steps(50, 60)}", "user_exception", None),
        (f"{PRINTED}{steps(5, 6) * 4}{steps(6, 7) * 30}", "user_exception", None),
        (f"[rank2]: KeyError: 1\n{steps(5, 90, '[rank0]: ')}", "user_exception", 2),
        (f"{SAMPLE}\n{steps(0, 30)}Segmentation fault (core dumped)", "segmentation_fault", None),
        (f"restart 1 in 4 ms: SOFT_TIMEOUT on rank 2 (initial rank 2, vm pid 9): x\n{steps(0, 60)}", "hang", 2),
        ("".join(f"epoch 1 batch {step} loss is nan\n" for step in range(40)), "nan_loss", None),
        (f"{SMALLER}\n" + "".join(f"step {step} loss: nan\n" for step in range(40)), "nan_loss", None),
        (f"epoch 1 step 0\n{SAMPLE}\n" + "".join(f"epoch 1: 20%| | {n}/90\nepoch 1 step {n}\n" for n in range(40)),
         "clean", None),
    ],
)  # fmt: skip
def test_what_a_rank_goes_on_after_for_many_steps_was_not_its_end(text: str, failure: str, rank: int | None) -> None:
    assert said(verdict_of_logs({"run.log": text})) == (failure, rank)


EXIT_OF_1 = "E0703 10:00:02.0 9 torch/api.py:863] failed (exitcode: {0}) local_rank: 1 (pid: 9) of binary: python\n"


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (f"{steps(0, 5)}{PRINTED}{steps(5, 60)}{EXIT_OF_1.format(1)}", "user_exception"),
        (f"{steps(0, 5)}{PRINTED}{steps(5, 60)}{EXIT_OF_1.format(-11)}", "segmentation_fault"),
        (f"{steps(0, 5)}{PRINTED}{steps(5, 600)}{EXIT_OF_1.format(1)}", "unknown"),
        (f"{steps(0, 5)}{PRINTED}{steps(5, 60)}{TRACE}OSError: [Errno 28] x\n{EXIT_OF_1.format(1)}", "disk_full"),
        (f"{steps(0, 5)}{SAMPLE}\n{steps(5, 60)}{EXIT_OF_1.format(1)}", "unknown"),
        (f"{steps(0, 5)}{PRINTED}{steps(5, 60)}[rank0]: {LOST}\n{EXIT_OF_1.format(1)}", "unknown"),
        (prefixed("[rank1]: ", f"{steps(0, 5)}{PRINTED}{steps(5, 60)}") + EXIT_OF_1.format(1), "unknown"),
        (f"{steps(0, 5)}{PRINTED}{steps(5, 60, '[rank0]: ')}", "clean"),
        (f"{steps(0, 5)}{PRINTED}{steps(5, 60, '[rank0]: ')}{EXIT_OF_1.format(1)}", "user_exception"),
        (f"{steps(0, 5)}2026-07-03 10:00:01,000 ERROR upload failed\n{PRINTED}{steps(5, 60)}{EXIT_OF_1.format(1)}",
         "unknown"),
    ],
)  # fmt: skip
def test_an_exception_explains_an_exit_code_though_other_ranks_have_gone_on(text: str, failure: str) -> None:
    """The lines of several ranks have no prefix: whose steps they were is not known."""
    assert verdict_of_logs({"run.log": text}).failure == failure


@pytest.mark.parametrize("line", ["dumping batch {0}: ids", "retained batch {0} 1 GiB", "flight recorder iter {0}"])
def test_what_a_rank_numbers_after_its_failure_need_not_be_steps(line: str) -> None:
    dump = "".join(line.format(number) + "\n" for number in range(40))
    for before in ("", steps(0, 9)):
        text = f"{before}{TRACE}ValueError: bad batch\n{dump}"
        assert verdict_of_logs({"run.log": text}).failure == "user_exception"
        assert verdict_of_logs({"run.log": prefixed("[rank3]: ", text)}).rank == 3


def test_steps_after_a_failure_are_looked_for_in_the_middle_of_a_large_log(tmp_path: Path) -> None:
    """Lines that differ in digits only are looked at once, except for these."""
    log = tmp_path / "run.log"
    log.write_text(steps(0, 20_000) + SAMPLE + "\n" + steps(20_000, 20_021) + "x\n" * 100_000)
    assert verdict_of_files([log]).failure == "clean"
    log.write_text(steps(0, 20_000) + SAMPLE + "\n" + steps(20_000, 20_009) + "x\n" * 100_000)
    assert verdict_of_files([log]).failure == "disk_full"


@pytest.mark.parametrize(
    ("verdict", "failure", "rank"),
    [
        (cycle(1, EXIT, r0=f"{SMALLER}\n{steps(0, 5)}"), "unknown", 1),
        (cycle(2, EXIT, r1=f"{SAMPLE}\nstep 5", r2="step 5"), "unknown", 2),
        (cycle(2, SEGV, r1=f"{SAMPLE}\nstep 5"), "segmentation_fault", 2),
        (cycle(2, EXIT, r1=f"{TRACE}OSError: [Errno 28] No space left on device"), "disk_full", 1),
        (cycle(2, EXIT, r1="2026-07-03 10:00:01,000 ERROR No space left on device"), "disk_full", 1),
        (cycle(2, EXIT, r2="No space left on device"), "disk_full", 2),
        (cycle(2, SEGV, r1="if the node is preempted we save"), "segmentation_fault", 2),
        (cycle(2, EXIT, r2="this node is preempted, saving"), "preemption", 2),
    ],
)
def test_what_a_rank_prints_that_has_not_ended_is_no_cause(verdict: Verdict, failure: str, rank: int) -> None:
    assert said(verdict) == (failure, rank)


EXITED = "srun: error: n0: task {0}: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("text", "failure", "rank"),
    [
        (f"1: {SMALLER}\n" + EXITED.format(3), "unknown", 3),
        (f"1: {SMALLER}\n1: {LOST}\n" + EXITED.format(3) + EXITED.format(1), "unknown", 3),
        (f"1: {SMALLER}\n3: {LOST}\n" + EXITED.format(3) + EXITED.format(1), "cuda_out_of_memory", 1),
    ],
)
def test_what_a_rank_prints_that_has_lost_another_since_is_no_cause(text: str, failure: str, rank: int) -> None:
    assert said(verdict_of_logs({"slurm.out": text})) == (failure, rank)


DEL = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f12>\n"
CHILD = f"{TRACE}AssertionError: can only test a child process\n"
CHAINED = "During handling of the above exception, another exception occurred:\n"


@pytest.mark.parametrize(
    ("text", "failure", "rank"),
    [
        (f"Training completed\n{DEL}{CHILD}", "clean", None),
        (f"step 5\n{DEL}ImportError: sys.meta_path is None, Python is likely shutting down\n", "clean", None),
        (f"Exception ignored in atexit callback: <function _exit at 0x7f12>\n{TRACE}OSError: [Errno 9] x\n", "clean",
         None),
        (f"{DEL}{CHILD}{CHAINED}{TRACE}ValueError: of the finalizer\n", "clean", None),
        (f"{DEL}{CHILD}{TRACE}ValueError: the cause\n", "user_exception", None),
        (f"{DEL}{CHILD}step 5\n{TRACE}ValueError: the cause\n", "user_exception", None),
        (f"{DEL}something else\n{TRACE}ValueError: the cause\n", "user_exception", None),
        (f"{DEL}{TRACE}something else\n{TRACE}ValueError: the cause\n", "user_exception", None),
        (f"{DEL}{TRACE}{TRACE}ValueError: the cause\n", "user_exception", None),
        (f"{DEL}{TRACE}RuntimeError: CUDA error: x\nCompile with TORCH_USE_CUDA_DSA to enable device-side assertions\n",
         "clean", None),
        (f"{DEL}{CHILD}step 5\n{CHAINED}{TRACE}ValueError: the cause\n", "user_exception", None),
        (f"{TRACE}OSError: [Errno 28] x\n{CHAINED}{TRACE}ValueError: y\n{DEL}{CHILD}", "disk_full", None),
        (f"[rank1]: {DEL}" + "".join(f"[rank1]: {line}\n" for line in CHILD.splitlines())
         + "[rank0]: ValueError: x", "user_exception", 0),
    ],
)  # fmt: skip
def test_an_exception_that_python_has_ignored_ends_nothing(text: str, failure: str, rank: int | None) -> None:
    assert said(verdict_of_logs({"run.log": text})) == (failure, rank)


def test_a_rank_is_not_to_blame_for_an_exception_that_python_has_ignored() -> None:
    for rank in (1, 2):
        verdict = cycle(2, SEGV, **{f"r{rank}": DEL + CHILD})
        assert said(verdict) == ("segmentation_fault", 2)


NCCL = "[rank{0}]:[E703 11:20:11.2 ProcessGroupNCCL.cpp:{1}] "
BEGUN = (
    NCCL.format("{0}", 2241) + "[PG ID 0 PG GUID 0(default_pg) Rank {0}]  failure detected by watchdog at work"
    " sequence id: {1} PG status: last enqueued work: {2}, last completed work: {1}\n"
)
CAUGHT = (
    NCCL.format("{0}", 684) + "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1},"
    " OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)
DUMPED = (
    NCCL.format("{0}", 1762) + "[PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal due to a collective"
    " timeout from  rank 0. Last enqueued NCCL work: {1}, last completed NCCL work: {1}.\n"
)


def timed_out(rank: int, number: int, begun: int) -> str:
    return BEGUN.format(rank, number, begun) + CAUGHT.format(rank, number)


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (timed_out(0, 4521, 4523) + timed_out(1, 4521, 4525) + timed_out(2, 4521, 4525) + "[rank3]: step 7", 3),
        (timed_out(0, 4521, 4523) + timed_out(1, 4521, 4525) + timed_out(2, 4521, 4524) + timed_out(3, 4521, 4521),
         None),
        (timed_out(0, 4521, 4523) + timed_out(1, 4521, 4525) + DUMPED.format(2, 4520), 2),
        (timed_out(0, 4521, 4523) + timed_out(1, 4521, 4525) + DUMPED.format(2, 4520) + DUMPED.format(3, 4520), None),
        ("".join(CAUGHT.format(rank, 10) for rank in range(3)) + CAUGHT.format(3, 9), 3),
        ("[rank4]: step 1\n" + "".join(CAUGHT.format(rank, 10) for rank in range(3)) + CAUGHT.format(3, 9), 4),
        ("".join(CAUGHT.format(rank, 10 - rank % 2) for rank in range(4)), None),
        (CAUGHT.format(0, 10) + "[rank1]: step 1\n[rank2]: step 1", None),
        (BEGUN.format(0, 5, 6).replace("default_pg", "tp") + BEGUN.format(1, 5, 4).replace("default_pg", "tp")
         + BEGUN.format(0, 90, 90) + BEGUN.format(2, 90, 90) + BEGUN.format(1, 90, 90)
         + CAUGHT.format(0, 90) + CAUGHT.format(1, 5) + CAUGHT.format(2, 90), None),
    ],
)  # fmt: skip
def test_a_rank_is_behind_only_if_it_has_not_begun_the_collective_that_timed_out(text: str, rank: int | None) -> None:
    assert said(verdict_of_logs({"run.log": text})) == ("nccl_timeout", rank)


OF_GROUP = (
    NCCL.format("{0}", 684) + "[PG ID {1} PG GUID {2} Rank {3}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum={4}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)
DUMPED_OF_GROUP = (
    NCCL.format("{0}", 1762)
    + "[PG ID {1} PG GUID {2} Rank {3}] Received a dump signal due to a collective timeout from"
    " rank 0. Last enqueued NCCL work: {4}, last completed NCCL work: {4}.\n"
)


@pytest.mark.parametrize(
    ("lines", "rank"),
    [
        # rank, number of the group on it, name of the group, rank in the group, number of the collective
        (OF_GROUP.format(0, 0, 0, 0, 1000) + OF_GROUP.format(1, 0, 0, 1, 1000) + OF_GROUP.format(2, 0, 0, 2, 1000)
         + OF_GROUP.format(3, 2, 5, 0, 9), None),
        (OF_GROUP.format(0, 1, "1(tp)", 0, 700) + OF_GROUP.format(1, 1, "1(tp)", 1, 700)
         + OF_GROUP.format(2, 1, "2(tp)", 0, 698) + OF_GROUP.format(3, 1, "2(tp)", 1, 698), None),
        (OF_GROUP.format(0, 1, "1(tp)", 0, 700) + OF_GROUP.format(1, 1, "1(tp)", 1, 700)
         + OF_GROUP.format(2, 1, "2(tp)", 0, 698) + OF_GROUP.format(3, 1, "2(tp)", 1, 697), 3),
        (OF_GROUP.format(0, 1, "8(dp)", 0, 50) + OF_GROUP.format(1, 1, "9(dp)", 0, 50)
         + OF_GROUP.format(2, 2, "7(tp)", 0, 900)
         + DUMPED_OF_GROUP.format(2, 1, "8(dp)", 1, 49) + DUMPED_OF_GROUP.format(0, 1, "8(dp)", 0, 51)
         + DUMPED_OF_GROUP.format(3, 3, "7(tp)", 1, 899) + DUMPED_OF_GROUP.format(2, 2, "7(tp)", 0, 901), 3),
    ],
)  # fmt: skip
def test_numbers_of_collectives_are_compared_within_a_process_group(lines: str, rank: int | None) -> None:
    """The same group has another number on each rank; a rank that waits in one group is late in the others for that."""
    assert said(verdict_of_logs({"run.log": lines})) == ("nccl_timeout", rank)


def test_the_rank_in_a_group_is_not_that_of_the_job() -> None:
    text = OF_GROUP.format(5, 1, "1(tp)", 1, 700) + "[rank4]: step 3 loss 1\n"
    assert said(verdict_of_logs({"run.log": text})) == ("nccl_timeout", 4)
    without_prefix = text.replace("[rank5]:", "").replace("[rank4]: ", "")
    assert said(verdict_of_logs({"run.log": without_prefix})) == ("nccl_timeout", None)


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 4, in <module>
  |     run(main)
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "train.py", line 9, in save
    |     raise error
    | {0}
    +------------------------------------
"""
DENIED = "PermissionError: [Errno 13] Permission denied: '/ckpt'"


@pytest.mark.parametrize(
    ("text", "failure", "rank"),
    [
        (GROUP.format(DENIED), "permission_denied", None),
        (prefixed("[rank0]: ", GROUP.format("ValueError: bad")), "user_exception", 0),
        (GROUP.format(DENIED)[:240], "unknown", None),
        (f"{GROUP.format(DENIED)}step 9\n  | Error | 3 |\nTraining finished", "clean", None),
        (f"{steps(0, 9)}{TRACE}", "unknown", None),
        (f'{steps(0, 9)}Traceback (most recent call last):\n  File "a.py", l', "unknown", None),
        (prefixed("[rank2]: ", TRACE) + "[rank0]: step 3", "unknown", 2),
        (f"{TRACE}{steps(0, 30)}", "clean", None),
        (f"{TRACE}[rank0]: ValueError: x\n", "user_exception", 0),
        (f"{DEL}{TRACE}", "clean", None),
        (f"{TRACE}SystemExit: 1", "unknown", None),
        (f"{TRACE}SystemExit: 0", "clean", None),
        (f"{TRACE}SystemExit", "clean", None),
        (f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "unknown", None),
        (f"{TRACE}subprocess.CalledProcessError: Command '['python', 'x.py']' returned non-zero exit status 1.",
         "unknown", None),
        (f"{TRACE}subprocess.CalledProcessError: Command '['a']' died with <Signals.SIGSEGV: 11>.",
         "segmentation_fault", None),
        (f"{TRACE}torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV",
         "segmentation_fault", 1),
        (f"{TRACE}subprocess.CalledProcessError: Command 'git' returned non-zero exit status 128.\n{steps(0, 30)}",
         "clean", None),
        (f"{TRACE}grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:", "user_exception",
         None),
        (f"{TRACE}mypkg.errors.bad_thing: x", "user_exception", None),
        ("srun: error: n1: task 3: Illegal instruction (core dumped)", "segmentation_fault", 3),
        ("srun: error: n1: task 3: Floating point exception (core dumped)", "segmentation_fault", 3),
        ("srun: error: n1: task 3: Bus error (core dumped)", "segmentation_fault", 3),
        ("run.sh: line 3: 4711 Illegal instruction     (core dumped) python train.py", "segmentation_fault", None),
        ("run.sh: line 3: 4711 Bus error               (core dumped) python train.py", "segmentation_fault", None),
        ("run.sh: line 3: 4711 Aborted                 (core dumped) python train.py", "unknown", None),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137.",
         "host_out_of_memory", None),
        ("Container exited with code 137", "operator_kill", None),
        ("Error: pod train-worker-3 failed: reason: Error, exit code: 1", "unknown", None),
        ("training failed with exit status 1", "unknown", None),
        ("pre-check: exit code: 1, ignored", "clean", None),
        (f"git rev-parse exited with exit code 128\n{steps(0, 5)}", "clean", None),
        ("Job exit codes: exit code 1 is a failure, exit code 0 success\nbye", "clean", None),
        (f"{TRACE}ValueError: bad\ncleanup.sh: exit code 0\n", "user_exception", None),
        (f"{steps(0, 3)}{PRINTED}{steps(3, 5)}the job has exited with code 0\n", "clean", None),
        ("exit code 3 means retry\nbye", "clean", None),
        ("['python', 'train.py', '--on-nan', 'skipping', '--retries', '3'] exits with return code = -11",
         "segmentation_fault", None),
        (AGENT.replace("binary: python", "binary: /opt/retry/bin/python"), "unknown", 2),
        ("Received SIGTERM, skipping what is left of the epoch", "operator_kill", None),
        ("the node is preempted, the job will continue elsewhere", "preemption", None),
        ("sample 7: ffmpeg failed with exit code 1\n" + "sample done\n" * 300, "clean", None),
        ("sample 7: ffmpeg failed with exit code 1\n" + "sample done\n" * 30, "unknown", None),
        ("shards: 97 ok, 3 with exit code 1/2\nbye", "clean", None),
        ("launcher: process failed with exit code 3 on node n7", "unknown", None),
        (f"nvidia-smi: exit code: 9\n{steps(0, 30)}", "clean", None),
        ("all workers: exit code 0", "clean", None),
        ("The node was low on resource: ephemeral-storage. Container main was using 10Gi", "disk_full", None),
        ("The node was low on resource: memory. Threshold quantity: 100Mi", "host_out_of_memory", None),
        ("Warning  job/x  Job was active longer than specified deadline", "time_limit", None),
        ("srun: error: Unable to create step for job 12: Requested node configuration is not available", "unknown",
         None),
        ("[1.2] NVRM: Xid (PCI:0000:3b:00): 46, pid=1, GPU stopped processing", "gpu_lost", None),
        ("[1.2] NVRM: Xid (PCI:0000:3b:00): 122, pid=1, SPI RMU read failed", "gpu_lost", None),
    ],
)  # fmt: skip
def test_what_has_failed_is_not_called_clean(text: str, failure: str, rank: int | None) -> None:
    assert said(verdict_of_logs({"run.log": text})) == (failure, rank)


XID = "Jul  {0} 10:00:00 n7 kernel: NVRM: Xid (PCI:0000:3b:00): {1}, pid='<unknown>', name=<unknown>, x"
OOM = "n7 kernel: Out of memory: Killed process 9999 (mysqld) total-vm:1kB"
NO_MODULE = "2026-07-03 10:00:0{0},000 ERROR [rank0] ModuleNotFoundError: No module named 'x'"


@pytest.mark.parametrize(
    ("logs", "failure", "rank"),
    [
        ({"kern.log": XID.format(1, 79), "job.log": NO_MODULE.format(1)}, "missing_module", 0),
        ({"kern.log": XID.format(3, 79), "job.log": NO_MODULE.format(1)}, "gpu_lost", None),
        ({"kern.log": XID.format(1, 79), "job.log": "2026-07-03 10:00:01,000 INFO [rank0] step 1"}, "clean", None),
        ({"kern.log": XID.format(3, 79), "job.log": "2026-07-03 03:00:01,000 INFO [rank0] step 1"}, "gpu_lost", None),
        ({"kern.log": XID.format(3, 79), "job.log": NO_MODULE.format(1).replace("10:", "16:")}, "missing_module", 0),
        ({"dmesg": "[1.0] NVRM: Xid (PCI:0000:1a:00): 94, pid=77, Contained", "job.log": NO_MODULE.format(1)},
         "missing_module", 0),
        ({"dmesg": "[1.0] NVRM: Xid (PCI:0000:1a:00): 79, pid=77, x", "job.log": f"[rank0]: {LOST}"}, "gpu_lost",
         None),
        ({"dmesg": "[1.0] NVRM: Xid (PCI:0000:1a:00): 79, pid=77, x",
          "job.log": "[rank3]: RuntimeError: CUDA error: unknown error\n[rank0]: ValueError: x"}, "gpu_lost", 3),
        ({"kern.log": f"Jul  3 10:00:00 {OOM}", "job.log": f"[rank0]: {TRACE}[rank0]: ValueError: bad"},
         "user_exception", 0),
        ({"kern.log": f"Jul  3 10:00:00 {OOM}", "job.log": "[rank0]: step 1\nsrun: error: n7: task 0: Killed"},
         "host_out_of_memory", 0),
        ({"kern.log": f"Jul  1 10:00:00 {OOM}", "job.log": NO_MODULE.format(1)}, "missing_module", 0),
        ({"kern.log": f"Jul  3 10:00:00 {OOM}", "job.log": f"[rank0]: {LOST}\n[rank1]: step 1"},
         "host_out_of_memory", None),
        ({"kern.log": XID.format(3, 63), "job.log": f"[rank0]: {TRACE}[rank0]: KeyError: 'x'"}, "user_exception", 0),
        ({"kern.log": XID.format(3, 92), "job.log": "[rank0]: step 1"}, "clean", None),
        ({"kern.log": XID.format(3, 64)}, "ecc_error", None),
        ({"kern.log": "Jul  3 10:00:00 n7 kernel: [ 1.1] bash[77]: segfault at 0 ip 0", "job.log": "ValueError: x"},
         "user_exception", None),
        ({"slurm.out": "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n3: ValueError: x"},
         "host_out_of_memory", None),
        ({"dmesg": "[1.0] NVRM: Xid (PCI:0000:1a:00): 79, pid=9, name=python, x",
          "job.log": f"[rank2]: {TRACE}[rank2]: RuntimeError: forward failed\n{AGENT}"}, "gpu_lost", 2),
        ({"dmesg": "[1.0] NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', x",
          "job.log": f"[rank1]: {TRACE}[rank1]: RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at x.cpp"},
         "gpu_lost", 1),
        ({"dmesg": "[1.0] NVRM: Xid (PCI:0000:1a:00): 79, pid=77, x",
          "job.log": f"[rank1]: {TRACE}[rank1]: AssertionError: batch of 7"}, "assertion", 1),
        ({"dmesg": "[1.0] NVRM: Xid (PCI:0000:1a:00): 79, pid=77, x",
          "job.log": f"[rank1]: {TRACE}[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried"},
         "cuda_out_of_memory", 1),
        ({"kern.log": XID.format(3, 79),
          "job.log": f"2026-07-03 10:40:00,000 ERROR [rank1] {TRACE}[rank1]: KeyError: 'x'"}, "user_exception", 1),
        ({"kern.log": XID.format(3, 79), "job.log": "2026-07-03 10:40:00 [rank1]: RuntimeError: CUDA error: x"},
         "gpu_lost", 1),
        ({"kern.log": XID.format(1, 79), "job.log": "2026-07-03 10:40:00 [rank1]: RuntimeError: CUDA error: x"},
         "cuda_error", 1),
        ({"kern.log": XID.format(3, 31), "job.log": "2026-07-03 10:00:10 [rank1]: ValueError: x"}, "user_exception", 1),
        ({"dmesg": "[1.0] NVRM: Xid (PCI:0000:1a:00): 31, pid=77, x", "job.log": "[rank1]: ValueError: x"},
         "user_exception", 1),
        ({"kern.log": f"Jul  3 02:00:00 {OOM}",
          "job.log": "2026-07-03 10:00:01 [rank1]: ValueError: x\n2026-07-03 10:00:02 srun: error: n7: task 0: Killed"},
         "operator_kill", 0),
        ({"kern.log": f"Jul  3 02:00:00 {OOM}".replace("mysqld", "python"),
          "job.log": "2026-07-03 10:00:01 [rank1]: ValueError: x\n2026-07-03 10:00:02 srun: error: n7: task 0: Killed"},
         "host_out_of_memory", 0),
        ({"kern.log": f"Jul  3 04:30:05 {OOM}".replace("mysqld", "python"),
          "job.log": "2026-07-03 10:00:01 [rank1]: ValueError: x\n2026-07-03 10:00:02 srun: error: n7: task 0: Killed"},
         "host_out_of_memory", 0),
        ({"kern.log": f"Jul  3 02:17:00 {OOM}".replace("mysqld", "python"),
          "job.log": "2026-07-03 10:00:01 [rank1]: ValueError: x\n2026-07-03 10:00:02 srun: error: n7: task 0: Killed"},
         "operator_kill", 0),
        ({"kern.log": f"Jul  3 02:00:00 {OOM}", "job.log": "2026-07-03 10:00:01 [rank1]: ValueError: x"},
         "user_exception", 1),
        ({"kern.log": "Jul  3 02:00:00 " + OOM.replace("9999 (mysqld)", "77 (pt_data_worker)"),
          "job.log": "2026-07-03 10:00:01 [rank1]: RuntimeError: DataLoader worker (pid 77) is killed by signal:"
                     " Killed."},
         "host_out_of_memory", 1),
        ({"kern.log": "Jul  3 02:00:00 " + OOM,
          "job.log": "2026-07-03 10:00:01 [rank1]: ValueError: x\n" + AGENT.replace("exitcode: 1", "exitcode: -9")},
         "operator_kill", 2),
        ({"kern.log": XID.format(3, 31), "job.log": f"[rank1]: step 1\n{CANCELLED}"}, "operator_kill", None),
        ({"kern.log": XID.format(3, 31), "job.log": "[rank1]: step 1\n"}, "cuda_error", None),
        ({"kern.log": f"Jul  3 09:00:00 {OOM}", "job.log": "[rank1]: step 1\n"}, "host_out_of_memory", None),
        ({"kern.log": f"Jul  3 09:00:00 {OOM}", "job.log": "[rank1]: step 1\ntraining finished\n"}, "clean", None),
        ({"kern.log": XID.format(3, 79), "job.log": "warm-up run completed\n[rank1]: step 1\n"}, "gpu_lost", None),
        ({"kern.log": XID.format(3, 79), "job.log": "[rank1]: step 1\ntraining finished\n"}, "clean", None),
        ({"kern.log": XID.format(3, 79), "a.log": "training finished\n", "b.log": "[rank1]: step 1\n"}, "clean", None),
        ({"kern.log": XID.format(1, 31), "job.log": "2026-07-03 10:00:01,000 INFO [rank1]: step 1\n"}, "clean", None),
        ({"kern.log": XID.format(3, 79), "job.log": "2026-07-03 18:00:01 [rank1]: RuntimeError: CUDA error: x"},
         "gpu_lost", 1),
        ({"kern.log": "Dec 31 23:59:50 n7 kernel: NVRM: Xid (PCI:0000:1a:00): 79, pid=1, x",
          "job.log": "2026-01-01 00:00:11 [rank1]: RuntimeError: CUDA error: x"}, "gpu_lost", 1),
        ({"kern.log": f"Jul  3 10:00:00 {OOM}".replace("9999 (mysqld)", "5 (python)"),
          "job.log": f"[rank1]: {TRACE}[rank1]: concurrent.futures.process.BrokenProcessPool: A process in the process"
                     " pool was terminated abruptly while the future was running or pending."},
         "host_out_of_memory", 1),
    ],
)  # fmt: skip
def test_a_record_of_the_kernel_counts_if_it_can_be_of_this_job(
    logs: dict[str, str], failure: str, rank: int | None
) -> None:
    assert said(verdict_of_logs(logs)) == (failure, rank)


OF_HOUR = "Jul  3 {0} n7 kernel: NVRM: Xid (PCI:0000:3b:00): {1}, pid={2}, name={3}, x"
AT_TEN = "2026-07-03 10:{0} [rank1]: {1}"
ASSERT = "RuntimeError: CUDA error: device-side assert triggered"
UNKNOWN = "RuntimeError: CUDA error: unknown error"


@pytest.mark.parametrize(
    ("record", "said_by_job", "failure"),
    [
        (f"Jul  3 09:30:00 {OOM}", AT_TEN.format("00:01", "RuntimeError: the queue was killed by the user"),
         "user_exception"),
        (OF_HOUR.format("02:00:00", 79, 1, "other"), AT_TEN.format("00:01", 'KeyError: "CUDA extension not built"'),
         "user_exception"),
        (OF_HOUR.format("02:00:00", 79, 1, "python"), AT_TEN.format("00:01", ASSERT), "cuda_error"),
        (OF_HOUR.format("02:00:00", 79, 1, "other"), AT_TEN.format("00:01", UNKNOWN), "cuda_error"),
        (OF_HOUR.format("02:00:00", 79, 1, "python"), AT_TEN.format("00:01", UNKNOWN), "gpu_lost"),
        (OF_HOUR.format("02:00:00", 79, 1, "python"), AT_TEN.format("04:01", UNKNOWN), "cuda_error"),
        (OF_HOUR.format("02:00:00", 79, 1, "python") + "\n" + OF_HOUR.format("02:12:00", 79, 1, "python"),
         AT_TEN.format("00:01", UNKNOWN), "cuda_error"),
        ("[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=other, x", 'KeyError: "CUDA extension not built"',
         "user_exception"),
        ("Jul  3 02:00:00 n7 kernel: python[77]: segfault at 0 ip 0",
         AT_TEN.format("00:01", "ValueError: x\n") + "run.sh: line 3: 4711 Segmentation fault  (core dumped) python x",
         "user_exception"),
        (f"Jul  3 02:00:00 {OOM}".replace("mysqld", "python"),
         AT_TEN.format("00:01", "ValueError: x\n") + "[rank1]: " + EXIT_OF_1.format(-9), "user_exception"),
        (f"Jul  3 02:00:00 {OOM}".replace("mysqld", "python"),
         AT_TEN.format("00:01", "ValueError: x\nKeyboardInterrupt"), "user_exception"),
        ("[1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=python, x", EXIT_OF_1.format(1), "cuda_error"),
        ("[1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=8, name=python, x",
         "[rank0]: torch.distributed.DistBackendError: NCCL error: unhandled cuda error", "cuda_error"),
        ("[1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=8, name=python, x",
         "[rank0]: torch.distributed.DistBackendError: NCCL error: unhandled system error", "nccl_error"),
    ],
)  # fmt: skip
def test_a_record_of_another_program_or_hour_is_not_of_this_job(record: str, said_by_job: str, failure: str) -> None:
    assert verdict_of_logs({"kern.log": record, "job.log": said_by_job}).failure == failure


TERMINATED = "DataLoader worker (pid 4711) is killed by signal: Terminated"
CANCELLED_FOR = "slurmstepd: error: *** STEP 4711.0 ON n0 CANCELLED AT 2026-07-03T10:00:02 DUE TO TASK FAILURE ***\n"


@pytest.mark.parametrize(
    ("text", "failure", "action"),
    [
        (f"previous run was killed by signal: Terminated\n{TRACE}AssertionError: x", "assertion", Action.STOP),
        (f"{TRACE}RuntimeError: {TERMINATED}. \n", "data_loader", Action.RESTART),
        (f"{TRACE}RuntimeError: {TERMINATED}. \n{EXIT_OF_1.format(1)}", "data_loader", Action.RESTART),
        (f"{steps(0, 9)}{TRACE}RuntimeError: {TERMINATED}. \n{steps(9, 60)}", "clean", Action.NONE),
        (f"{steps(0, 9)}WARNING {TERMINATED}, respawning\n{steps(9, 12)}training finished", "clean", Action.NONE),
        (f"{CANCELLED_FOR}{EXITED.format(2)}", "unknown", Action.RESTART),
        (CANCELLED_FOR, "unknown", Action.RESTART),
        (f"step 1\npod count preempted 0\n{steps(2, 9)}", "clean", Action.NONE),
        (f"step 1\njob 4711 preempted yesterday, resumed\n{steps(2, 9)}", "clean", Action.NONE),
        (f"step 1\ninstance i-0abc preempted=false\n{steps(2, 9)}", "clean", Action.NONE),
        (f"step 1\njob preempted=0\n{steps(2, 9)}", "clean", Action.NONE),
        ("step 1\nnode gpu-17 preempted by the scheduler", "preemption", Action.RESTART),
        ("step 1\njob 4711 preempted", "preemption", Action.RESTART),
        (f"step 1\nKeyboardInterrupt in prompt thread, ignoring\n{steps(2, 9)}", "clean", Action.NONE),
        (f"step 1\nWARNING nvcc probe failed with non-zero exit status 1, skipping\n{steps(2, 9)}", "clean",
         Action.NONE),
        (f"step 1\nERROR save worker process 3 exited with code 1, retrying\n{steps(2, 9)}", "clean", Action.NONE),
        (f"[rank1]: Received SIGTERM from preStop probe, ignoring\n[rank1]: {TRACE}[rank1]: AssertionError: x",
         "assertion", Action.STOP),
    ],
)  # fmt: skip
def test_words_of_an_end_that_was_none_stop_no_job(text: str, failure: str, action: Action) -> None:
    verdict = verdict_of_logs({"run.log": text})
    assert (verdict.failure, verdict.action) == (failure, action)


@pytest.mark.parametrize(
    ("line", "last"),
    [
        ("iteration {0}", 25), ("[batch={0}/625]:", 25), ("INFO global_step={0}", 25),
        ('{{"step": {0}, "tokens": 3}}', 25),
        ("Epoch {0}: tokens 4096 throughput 123 samples", 25), ("validating batch {0}", 25), ("did batch {0}", 110),
    ],
)  # fmt: skip
def test_steps_without_a_loss_show_that_a_failure_was_survived(line: str, last: int) -> None:
    after = "".join(line.format(number) + "\n" for number in range(last))
    assert verdict_of_logs({"run.log": f"{TRACE}{DENIED}\n{after}"}).failure == "clean"
    repeated = f"{line.format(7)}\n" * 200
    assert verdict_of_logs({"run.log": f"{TRACE}{DENIED}\n{repeated}"}).failure == "permission_denied"


def test_kinds_of_numbered_lines_are_bounded() -> None:
    kinds = "".join(f"saw {'x' * number} batch 1\n" for number in range(300))
    later = "".join(f"did batch {number}\n" for number in range(110))
    assert verdict_of_logs({"run.log": f"{TRACE}{DENIED}\n{kinds}{later}"}).failure == "permission_denied"


def test_an_exception_that_may_have_been_survived_explains_less() -> None:
    verdict = verdict_of_logs({"run.log": f"{steps(0, 5)}{TRACE}{DENIED}\n{steps(5, 60)}{EXIT_OF_1.format(1)}"})
    assert (verdict.failure, verdict.action) == ("permission_denied", Action.RESTART)
    assert verdict.confidence < 0.5


def test_not_all_lines_of_a_large_job_are_taken_for_an_open_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvrx_core.attribution.classification.MAX_AFTER", 5_000)
    classifier = Classifier()
    taken, until = 0, 0
    for number in range(1, 20_001):
        line = f"[rank{number % 1024}]: waiting for data" if number % 1_000 else "[rank3]: ConnectionError: x"
        taken += number <= until
        until = max(until, number + max(classifier.feed(each) for each in parse("run.log", number, line)))
    assert 5_000 < taken < 10_000


BY_SLURM = "slurmstepd: error: *** JOB 4711 ON n0 CANCELLED AT 2026-07-03T10:00:02{0} ***\n"
SAVING = "3: Received SIGTERM, saving a checkpoint\n"
AT_EXIT = f"3: {TRACE}3: RuntimeError: interrupted\n".replace("\n  ", "\n3:   ")


@pytest.mark.parametrize(
    ("logs", "failure", "action"),
    [
        ({"slurm.out": SAVING + BY_SLURM.format("")}, "operator_kill", Action.STOP),
        ({"slurm.out": SAVING + AT_EXIT + BY_SLURM.format("") + FAILED}, "operator_kill", Action.STOP),
        ({"slurm.out": SAVING + AT_EXIT + BY_SLURM.format(" DUE TO TIME LIMIT")}, "time_limit", Action.RESTART),
        ({"slurm.out": SAVING + AT_EXIT + BY_SLURM.format(" DUE TO PREEMPTION")}, "preemption", Action.RESTART),
        ({"slurm.out": BY_SLURM.format(" DUE to SIGNAL Terminated")}, "operator_kill", Action.STOP),
        ({"slurm.out": BY_SLURM.format(" by 1000")}, "operator_kill", Action.STOP),
        ({"slurm.out": BY_SLURM.format(""), "rank3.log": SAVING, "rank2.log": f"[rank2]: {LOST}"}, "operator_kill",
         Action.STOP),
        ({"slurm.out": f"3: {TRACE}3: KeyboardInterrupt\n".replace("\n  ", "\n3:   ") + BY_SLURM.format("")},
         "operator_kill", Action.STOP),
        ({"slurm.out": f"3: {TRACE}3: SystemExit: 143\n".replace("\n  ", "\n3:   ") + BY_SLURM.format("")},
         "operator_kill", Action.STOP),
        ({"slurm.out": "3: RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.\n"
                       + BY_SLURM.format(" DUE TO TIME LIMIT")}, "time_limit", Action.RESTART),
        ({"slurm.out": "3: Received SIGTERM\n3: Fatal Python error: Aborted\n" + BY_SLURM.format("")}, "operator_kill",
         Action.STOP),
    ],
)  # fmt: skip
def test_what_a_rank_says_on_a_signal_follows_from_what_the_scheduler_did(
    logs: dict[str, str], failure: str, action: Action
) -> None:
    verdict = verdict_of_logs(logs)
    assert (verdict.failure, verdict.rank, verdict.action) == (failure, None, action)


MPI = "mpirun noticed that process rank 2 with PID 7 on node n1 exited on signal 11 (Segmentation fault)."


@pytest.mark.parametrize(
    ("text", "failure", "rank"),
    [
        (MPI, "segmentation_fault", 2),
        ("AssertionError: Rank 3: found NaN in local forward loss calculation", "nan_loss", 3),
        (f"{TRACE}RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "nan_loss", None),
        (f"{TRACE}AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use it not.", "version_mismatch",
         None),
        (f"{TRACE}requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'x by peer'))",
         "user_exception", None),
        (f"{TRACE}ConnectionResetError: [Errno 104] Connection reset by peer", "peer_lost", None),
        (f"{TRACE}requests.exceptions.HTTPError: 401 Client Error: x", "permission_denied", None),
        (f"{TRACE}KeyError: 'loss is nan'", "user_exception", None),
        (f"{TRACE}KeyError: Caught KeyError in DataLoader worker process 0.", "data_loader", None),
        ("No module named 'flash_attn'. Using SDPA instead\nstep 1 loss 1", "clean", None),
        ("No module named 'flash_attn'", "missing_module", None),
        ("on received SIGTERM a checkpoint is saved\nstep 1", "clean", None),
        ("if the node is preempted we save\nstep 1", "clean", None),
        ("node n4 is preempted: it has a notice", "preemption", None),
        ("Node n1 preempted: on preempted nodes the job restarts", "preemption", None),
        ("if you see this, the job was preempted", "preemption", None),
        ("While in training, received SIGTERM, exiting as when asked", "operator_kill", None),
        ("When training, received SIGTERM, exiting", "operator_kill", None),
        ("we save, once the node was preempted, and when received SIGTERM\nstep 1", "clean", None),
        ("Caught SIGUSR2 on gpu-1: this job is preempted", "preemption", None),
        (f"step 1\nWARNING: failed, retrying in 2 s\n{TRACE}ConnectionError: x\nstep 2\nstep 3\n", "clean", None),
        (f"step 1\nWARNING: request failed, retrying in 2 s\n{TRACE}ValueError: x\n", "user_exception", None),
        (f"step 1\nWARNING: request failed, retrying\n{TRACE}OSError: x\n{TRACE}ValueError: x\nKilled\n",
         "user_exception", None),
        ("[rank0]: torch.distributed.DistBackendError: NCCL error in: x, unhandled system error\nncclSystemError: call",
         "nccl_error", 0),
        ("[rank1]: step 1\n[rank0]: DistBackendError: NCCL error in: x\nncclSystemError: call", "nccl_error", None),
    ],
)  # fmt: skip
def test_what_a_line_is_about(text: str, failure: str, rank: int | None) -> None:
    verdict = verdict_of_logs({"run.log": text})
    assert said(verdict) == (failure, rank)
    assert text != MPI or verdict.host == "n1"


@pytest.mark.parametrize(
    ("verdict", "failure", "rank"),
    [
        (cycle(2, EXIT, r1="hang: rank 3 (n1) stands at x.py:1 in f for 3 s"), "unknown", 2),
        (cycle(2, EXIT, r1="hang: all ranks are alike, none is to blame"), "unknown", 2),
        (cycle(2, EXIT, r1="2026-07-03 10:00:01,000 ERROR hang: rank 3 (n1) stands at x.py:1 in f for 3 s"), "hang", 3),
        (cycle(2, "was ended by SIGKILL, hung: no heartbeat for 12 s"), "hang", 2),
    ],
)
def test_a_hang_that_a_worker_has_printed_names_nobody(verdict: Verdict, failure: str, rank: int) -> None:
    assert said(verdict) == (failure, rank)


def test_the_text_of_a_rank_that_the_others_have_lost_says_why() -> None:
    verdict = cycle(
        1, "has failed with exit code 1", r0="CUDA out of memory", r1="RuntimeError: Connection closed by peer"
    )
    assert said(verdict) == ("cuda_out_of_memory", 0)


def test_what_ended_a_rank_that_the_others_have_lost_is_in_its_text() -> None:
    verdict = cycle(
        1, EXIT, r0="slurmstepd: error: *** STEP 7.0 ON n0 CANCELLED AT 2026-07-03T10:00:00 DUE TO TIME LIMIT ***",
        r1="RuntimeError: Connection closed by peer",
    )  # fmt: skip
    assert verdict.failure == "time_limit"
