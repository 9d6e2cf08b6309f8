"""Each parameter of the wrapper that takes a value or a plug-in, and what its `CallWrapper` offers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left, assert_restarts, restart

from .conftest import Launch

OPTIONS = "tests.harness.process.workers.options"
KILLED = -9
Harm = dict[str, list[list[int]]]
FAILS = {"function": [[1, 0]]}  # rank 1 raises in iteration 0


def run(
    prepare: Launch, case: str, harm: Harm, *, world: int = 2, store: bool = True, broken: int = 1, **settings: Any
) -> Job:
    """A finished job of ranks that use an option; nothing is left of it."""
    return run_prepared(prepare(world=world, store=store), case, harm, broken, **settings)


def run_prepared(
    job: Job, case: str, harm: Harm, broken: int = 1, module: str = OPTIONS, *, limit: float = 40, **settings: Any
) -> Job:
    texts = {"SETTINGS": json.dumps(settings), "HARM": json.dumps(harm), "BROKEN": str(broken), "CASE": case}
    log = str(job.directory / "application.log")
    environment = {f"NVRX_TEST_{name}": text for name, text in texts.items()}
    job.start(module, NVRX_TEST_LOG=log, **environment).finish(limit)
    assert_no_process_left(job)
    assert {code for code in job.codes.values() if code != KILLED} <= {0}, job.codes
    return job


def by_rank(job: Job, what: str, field: str, **fields: object) -> dict[int, Any]:
    """One field of the ranks' last records of a kind."""
    return {line["initial_rank"]: line[field] for line in job.lines(what, **fields)}


def results(job: Job, call: int = 0) -> dict[int, Any]:
    return by_rank(job, "done", "result", call=call)


def entered(job: Job, rank: int) -> list[int]:
    return [line["iteration"] for line in job.lines("enter", initial_rank=rank)]


# Giving up


@pytest.mark.parametrize("store", [True, False], ids=["store outside", "store in rank 0"])
def test_equal_failures_without_progress_end_the_job(prepare: Launch, store: bool) -> None:
    harm = {"function": [[1, iteration] for iteration in range(5)]}
    job = run(prepare, "plain", harm, world=3, store=store, broken=9, no_progress_limit=2)
    assert entered(job, rank=1) == [0, 1]
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    kinds, culprits = by_rank(job, "left", "kinds"), by_rank(job, "left", "culprit")
    assert {rank: kind[0] for rank, kind in kinds.items()} == {0: "RestartAbort", 1: "ValueError", 2: "RestartAbort"}
    assert culprits == {0: 1, 1: None, 2: 1}
    assert "initial rank 1" in by_rank(job, "left", "text")[0]


def test_equal_failures_with_progress_do_not_end_the_job(prepare: Launch) -> None:
    harm = {"function": [[1, iteration] for iteration in range(3)]}
    job = run(prepare, "progressing", harm, broken=3, no_progress_limit=2)
    assert results(job) == {0: 3, 1: 3}
    assert_restarts(job, [restart("EXCEPTION", by=[1])] * 3)


@pytest.mark.parametrize("store", [True, False], ids=["store outside", "store in rank 0"])
def test_retry_controller_ends_all_ranks(prepare: Launch, store: bool) -> None:
    harm = {"function": [[1, 0], [1, 1]]}
    job = run(prepare, "retries", harm, store=store, broken=9)
    assert entered(job, rank=1) == [0, 1]
    assert {rank: kinds[0] for rank, kinds in by_rank(job, "left", "kinds").items()} == dict.fromkeys(
        range(2), "RestartAbort"
    )
    assert all("max_iterations=2" in text for text in by_rank(job, "left", "text").values())


# Faults of the user's threads


def test_an_exception_in_a_thread_is_a_fault_where_it_shall_be(prepare: Launch) -> None:
    job = run(prepare, "threads", {"thread": [[1, 0]]}, thread_exceptions="fault")
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    assert "injected in thread" in job.errors(1)
    assert all(by_rank(job, "done", "hook").values()), "threading.excepthook is not put back"


def test_an_exception_in_a_thread_is_only_logged_by_default(prepare: Launch) -> None:
    job = run(prepare, "threads", {"thread": [[1, 0]]})
    assert results(job) == {0: 0, 1: 0}
    assert_restarts(job, [])
    assert "injected in thread" in job.errors(1)


def test_an_exception_of_an_older_thread_does_not_end_an_iteration(prepare: Launch) -> None:
    job = run(prepare, "late_threads", FAILS, thread_exceptions="fault")
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    assert "a-late-thread is older than iteration 1" in job.errors(1)
    assert "Exception in thread a-late-thread" in job.errors(1), "Python's own report is missing"


# Exceptions that cannot be shown


def test_an_exception_whose_text_raises_costs_no_rank(prepare: Launch) -> None:
    job = run(prepare, "wordless", {"wordless": [[1, 0]]})
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    assert "(no text: its __str__ raised LookupError)" in job.events("restart")[0]["cause"]["message"]


def test_a_frozen_dataclass_as_an_exception_costs_no_rank(prepare: Launch) -> None:
    job = run(prepare, "frozen", {"frozen": [[1, 0]]})
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])


def test_a_rank_that_gives_up_by_one_says_why(prepare: Launch) -> None:
    job = run(prepare, "frozen", {"frozen": [[1, 0], [1, 1]]}, no_progress_limit=2)
    assert by_rank(job, "left", "kinds")[1][0] == "Frozen"
    assert by_rank(job, "left", "notes")[1][0].startswith("nvrx: giving up: ")


def test_a_rank_that_leaves_with_such_an_exception_says_so(prepare: Launch) -> None:
    job = run(prepare, "wordless", {"exit": [[1, 0]]})
    assert results(job) == {0: 1}
    assert by_rank(job, "left", "kinds")[1][0] == "WordlessExit"
    assert_restarts(job, [restart("BASE_EXCEPTION", by=[1], lost=[1])])
    assert "(no text: its __str__ raised LookupError)" in job.events("left")[0]["reason"]


def test_no_source_file_is_read_for_a_fault(prepare: Launch) -> None:
    job = run(prepare, "sourceless", FAILS)
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    assert job.events("restart")[0]["cause"]["origin"].endswith("application.log.1.py:1")


# Stores


@pytest.mark.parametrize("fault", ["function", "kill"])
@pytest.mark.parametrize("case", ["file_store", "own_store"])
def test_another_store_serves_as_well(prepare: Launch, tmp_path: Path, case: str, fault: str) -> None:
    job = prepare(world=3, store=False)
    kwargs = {"file_name": str(tmp_path / "store")} if case == "file_store" else {"port": job.port + 1}
    run_prepared(job, case, {fault: [[1, 0]]}, store_kwargs=kwargs)
    lost = [1] if fault == "kill" else []
    assert results(job) == {rank: 1 for rank in range(3) if rank not in lost}
    assert_restarts(job, [restart("EXCEPTION TERMINATED", by=[1], lost=lost)])


def test_the_iteration_store_is_the_same_for_all_and_new_in_each_iteration(prepare: Launch) -> None:
    job = run(prepare, "iteration_stores", FAILS)
    for iteration in range(2):
        assert sorted(line["number"] for line in job.lines("store", iteration=iteration)) == [1, 2]
    assert results(job) == {0: 1, 1: 1}


@pytest.mark.parametrize("fault", ["function", "kill"])
def test_stores_on_ports_of_the_users_own_keep_working(prepare: Launch, fault: str) -> None:
    target = 0 if fault == "kill" else 1
    job = run(prepare, "stores_by_port", {fault: [[target, 0]]}, world=3)
    living = {0, 1, 2} - ({target} if fault == "kill" else set())
    assert results(job) == dict.fromkeys(living, len(living))


def test_calls_one_after_the_other_share_a_port(prepare: Launch) -> None:
    port = None
    for _ in range(3):
        job = prepare(world=2, store=False)
        port = job.port = port or job.port
        run_prepared(job, "twice", {"function": [[1, 0]], "second call": [[0, 0]]})
        assert results(job, call=0) == results(job, call=1) == {0: 1, 1: 1}
        assert_restarts(job, [restart("EXCEPTION", by=[1])], call=0)
        assert_restarts(job, [restart("EXCEPTION", by=[0])], call=1)


# Ranks


def test_rank_filter_is_deprecated_and_filters(prepare: Launch) -> None:
    job = run(prepare, "rank_filter", FAILS, world=3)
    (warned,) = by_rank(job, "warned", "warnings")[0]
    assert warned.startswith("DeprecationWarning: ")
    assert "rank_filter" in warned
    assert by_rank(job, "warned", "here")[0] == [True], "the warning names another file than the user's"
    assert [entered(job, rank) for rank in range(3)] == [[0, 1], [0, 1], []]
    assert set(by_rank(job, "enter", "world_size").values()) == {"2"}
    assert results(job) == {0: 1, 1: 1, 2: None}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    waiting = [(line["rank"], line["world_size"]) for line in job.lines("plug", name="initialize", initial_rank=2)]
    assert waiting == [(None, None)] * 2, "a reserve has no rank"


def test_a_reserve_takes_part_in_the_next_call(prepare: Launch) -> None:
    job = run(prepare, "twice_with_a_reserve", {}, world=3, broken=0)
    for call in range(2):
        assert results(job, call) == {0: 0, 1: 0, 2: None}
        after = {line["initial_rank"]: (line["rank"], line["world_size"]) for line in job.lines("done", call=call)}
        assert after == {rank: (str(rank), "3") for rank in range(3)}, "the wrapper's rank among the living"


def test_rank_and_world_size_stay_the_wrappers_after_the_call(prepare: Launch) -> None:
    job = run(prepare, "plain", {"kill": [[0, 0]]}, world=3)
    assert by_rank(job, "done", "rank") == {1: "0", 2: "1"}
    assert set(by_rank(job, "done", "world_size").values()) == {"2"}


def test_the_call_wrapper_is_injected_and_arguments_are_the_same_in_each_iteration(prepare: Launch) -> None:
    job = run(prepare, "injections", {}, world=1, store=False)
    lines = job.lines("injected")
    assert [line["form"] for line in lines] == [
        "by_class", "by_optional", "by_pep604", "by_string", "by_name", "by_long_name",
    ]  # fmt: skip
    for line in lines:
        assert line["seen"] == [[line["mine"], "CallWrapper", iteration] for iteration in range(2)], line["form"]
        assert line["same"], line["form"]


# Plug-ins


def plugs(job: Job, rank: int, **fields: object) -> list[tuple[str, int]]:
    return [(line["name"], line["iteration"]) for line in job.lines("plug", initial_rank=rank, **fields)]


def test_plug_ins_run_in_their_order(prepare: Launch) -> None:
    job = run(prepare, "plugs", FAILS)
    broken = [("initialize", 0), ("health_check", 0), ("finalize", 0), ("health_check", 0)]
    for rank in range(2):
        assert plugs(job, rank, main=True) == [*broken, ("initialize", 1), ("health_check", 1), ("completion", 1)]
        assert plugs(job, rank, main=False) == [("abort", 0)]
        assert plugs(job, rank).index(("abort", 0)) < plugs(job, rank).index(("finalize", 0))
    failed = [(line["initial_rank"], line["name"], line["iteration"]) for line in job.lines("plug", failed=True)]
    assert failed == [(1, "finalize", 0), (1, "health_check", 0)], "fn_exception is for the rank that failed"


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        ({"function": [[0, 0]], "finalize": [[1, 0]]}, "ValueError"),
        ({"health_check": [[1, 0]]}, "HealthCheckError"),
        ({"function": [[0, 0]], "health_check": [[1, 1]]}, "HealthCheckError"),
        ({"interrupt": [[1, 0]]}, "KeyboardInterrupt"),
        ({"interrupt": [[1, 0]], "terminate": [[1, 0]]}, "ValueError"),
    ],
    ids=["finalize", "health_check before the function", "health_check after a fault", "the function", "terminate"],
)
def test_a_rank_that_cannot_go_on_leaves_and_the_others_restart(prepare: Launch, harm: Harm, error: str) -> None:
    job = run(prepare, "plugs", harm, world=3)
    assert {rank: kinds[0] for rank, kinds in by_rank(job, "left", "kinds").items()} == {1: error}
    assert results(job) == {0: 1, 2: 1}
    assert by_rank(job, "enter", "world_size", iteration=1) == {0: "2", 2: "2"}
    assert plugs(job, 1)[-1] == ("terminate", 0)
    assert {line["initial_rank"] for line in job.lines("plug", name="completion")} == {0, 2}
    assert_restarts(job, [restart("EXCEPTION BASE_EXCEPTION", by=None, lost=[1])])


def test_a_rank_that_is_done_early_aborts_its_groups_and_nothing_else(prepare: Launch) -> None:
    job = run(prepare, "exits", {"exit": [[1, 0]]}, broken=0)
    assert by_rank(job, "left", "kinds")[1][0] == "SystemExit"
    assert results(job) == {0: 0}
    assert job.lines("plug", name="abort") == [], "the user's abort was called, and nothing had failed"
    assert "state=handling" not in (job.directory / "rank-1.out").read_text()


@pytest.mark.parametrize("before", [[], ["function"]], ids=["at first", "in a restart"])
def test_an_exception_in_initialize_restarts(prepare: Launch, before: list[str]) -> None:
    restarts = len(before) + 1
    harm = {place: [[1, 0]] for place in before} | {"initialize": [[1, len(before)]]}
    job = run(prepare, "plugs", harm, broken=restarts)
    assert results(job) == dict.fromkeys(range(2), restarts)
    assert_restarts(job, [restart("EXCEPTION", by=[1])] * restarts)
    assert "injected in initialize" in job.events("restart", iteration=restarts)[0]["cause"]["message"]
    assert "in -" not in job.errors(0), "a restart took less than no time"


@pytest.mark.parametrize("place", ["abort", "completion"])
def test_an_exception_in_abort_or_completion_is_logged(prepare: Launch, place: str) -> None:
    job = run(prepare, "plugs", FAILS | {place: [[0, 0], [1, 0]]})
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [restart("EXCEPTION", by=[1])])
    for rank in range(2):
        assert f"{place} failed" in job.errors(rank)
        assert f"injected in {place}" in job.errors(rank)


def test_without_collectives_nothing_needs_to_be_aborted(prepare: Launch) -> None:
    job = run(prepare, "no_abort", {"function": [[1, 0]], "kill": [[1, 1]]}, broken=2)
    assert results(job) == {0: 2}
    assert_restarts(job, [restart("EXCEPTION", by=[1]), restart("TERMINATED", by=[1], lost=[1])])


# Logging


def test_log_lines_go_to_the_applications_terminal_and_not_to_its_file(prepare: Launch) -> None:
    job = run(prepare, "logs", FAILS)
    terminal = job.errors(0).splitlines()
    (said,) = [line for line in terminal if "restart 1 in" in line]
    assert said.startswith("nvrx_core."), "not the application's format"
    assert all(word in said for word in (" ms (this rank): ", "injected in function", "[1]", "none lost")), said
    assert any(line.startswith("nvrx_core.") and "swallowed at" in line and "options.py" in line for line in terminal)
    assert (job.directory / "application.log").read_text() == "a line of its own\n"
    assert by_rank(job, "logger", "handlers") == {0: 0, 1: 0}
    assert all(by_rank(job, "logger", "propagate").values())
