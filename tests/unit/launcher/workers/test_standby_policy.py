"""When standby workers are started, and for which scripts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.standby_policy import (
    LOOKS_AGAIN,
    MAX_LOSSES,
    SETTLES,
    SETTLES_WARM,
    StandbyPolicy,
    StartStandby,
)
from nvrx_launcher.workers.warm_start import sets_what_imports_read, why_not_warm


def settled(workers=2):
    policy = StandbyPolicy(workers)
    policy.settle(now=0.0)
    return policy


def test_standbys_are_started_one_by_one_after_the_workers():
    policy = settled()
    assert policy.tick(now=SETTLES - 0.1, has_room=True) == ()
    (start,) = policy.tick(now=SETTLES, has_room=True)
    assert (start, start.reason) == (StartStandby(0), "local rank 0 has no standby")
    assert policy.deadline == math.inf
    policy.ready(0, now=7.0)
    assert policy.tick(now=7.0, has_room=True) == (StartStandby(1),)
    policy.ready(1, now=9.0)
    assert policy.tick(now=9.0, has_room=True) == ()


def test_a_job_without_standbys_never_wakes_for_one():
    policy = StandbyPolicy(2, "there are no restarts")
    policy.settle(now=0.0)
    assert (policy.deadline, policy.tick(now=SETTLES, has_room=True)) == (math.inf, ())


def test_no_standby_is_started_while_another_one_imports():
    policy = settled()
    policy.tick(now=5.0, has_room=True)
    policy.settle(now=6.0)
    assert policy.tick(now=11.0, has_room=True) == ()


def test_one_that_was_taken_is_replaced_when_the_workers_have_settled():
    policy = settled(1)
    policy.tick(now=5.0, has_room=True)
    policy.ready(0, now=7.0)
    policy.tick(now=7.0, has_room=True)
    policy.pause()
    assert policy.deadline == math.inf
    policy.taken(0, runs=False)
    policy.settle(now=20.0)
    assert policy.deadline == 20.0 + SETTLES
    assert policy.tick(now=20.0 + SETTLES, has_room=True) == (StartStandby(0),)


def test_workers_that_were_all_standbys_have_settled_sooner():
    policy = settled()
    for rank in range(2):
        assert policy.tick(now=5.0 + rank, has_room=True) == (StartStandby(rank),)
        policy.ready(rank, now=6.0 + rank)
    policy.taken(0, runs=True)
    policy.taken(1, runs=True)
    policy.settle(now=20.0)
    assert policy.deadline == 20.0 + SETTLES_WARM
    policy.taken(0, runs=True)
    policy.settle(now=30.0)
    assert policy.deadline == 30.0 + SETTLES


def test_without_memory_it_is_looked_for_again():
    policy = settled(1)
    assert policy.tick(now=5.0, has_room=False) == ()
    assert policy.tick(now=5.0 + LOOKS_AGAIN, has_room=True) == (StartStandby(0),)


def test_standbys_that_end_before_they_are_ready_are_given_up():
    policy, now = settled(1), SETTLES
    for _ in range(MAX_LOSSES):
        assert policy.tick(now=now, has_room=True) == (StartStandby(0),)
        assert policy.reason == ""
        policy.lost(0, "no torch", now=now)
    assert policy.tick(now=now, has_room=True) == ()
    assert "no torch" in policy.reason


def test_one_that_is_lost_when_it_is_ready_is_replaced():
    policy = settled(1)
    for _ in range(MAX_LOSSES + 1):
        assert policy.tick(now=5.0, has_room=True) == (StartStandby(0),)
        policy.ready(0, now=5.0)
        policy.lost(0, "killed", now=5.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["settle", "pause", "tick", "full", "ready", "lost", "taken"]), st.integers(0, 3))
    )
)
def test_a_local_rank_has_one_standby_at_most(steps):
    policy, now, starting, waiting = StandbyPolicy(4), 0.0, set(), set()
    for name, rank in steps:
        now += 3.0
        if name in ("settle", "pause"):
            policy.settle(now=now) if name == "settle" else policy.pause()
        elif name in ("tick", "full"):
            for action in policy.tick(now=now, has_room=name == "tick"):
                assert action.local_rank not in starting | waiting
                starting.add(action.local_rank)
        elif name == "ready" and rank in starting:
            policy.ready(rank, now=now)
            starting.remove(rank)
            waiting.add(rank)
        elif name == "taken" and rank in waiting:
            policy.taken(rank, runs=True)
            waiting.remove(rank)
        elif name == "lost" and rank in starting | waiting:
            policy.lost(rank, "", now=now)
            starting.discard(rank)
            waiting.discard(rank)
        assert len(starting) <= 1
        policy.check()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('os.environ["OMP_NUM_THREADS"] = "4"', True),
        ("os.environ.setdefault('TORCH_LOGS', 'x')", True),
        ("os.putenv( b'PYTORCH_ALLOC_CONF', b'')", True),
        ('rank = os.environ["RANK"]', False),
        ('if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":', False),
        ('if os.environ["TORCH_LOGS"] == "0":', False),
        ('print(os.environ.get("OMP_NUM_THREADS"))', False),
    ],
)
def test_a_script_that_sets_what_an_import_reads_is_recognized(source, found):
    assert bool(sets_what_imports_read(source)) is found


def reason(tmp_path, *argv, wanted="auto", imports="torch", text="import torch", environ=None):
    script = tmp_path / "train.py"
    script.write_text(text)
    given = parse_arguments([*argv, str(script)], {})[0]
    options = LaunchOptions.of(given, lambda _: 1, {})
    return why_not_warm(options, wanted=wanted, imports=imports, environ=environ or {})


def test_a_script_with_restarts_has_standbys(tmp_path):
    assert reason(tmp_path, "--max-restarts", "1") == ""
    assert reason(tmp_path, wanted="on", imports="nothing", text='os.environ["OMP_NUM_THREADS"] = "1"') == ""


@pytest.mark.parametrize(
    ("argv", "more", "why"),
    [
        (["--max-restarts", "1"], {"wanted": "off"}, "they are switched off"),
        (["--max-restarts", "0"], {}, "there are no restarts"),
        (["--max-restarts", "1", "--no-python"], {}, "the workers are no Python script"),
        (["--max-restarts", "1", "--run-path"], {"wanted": "on"}, "the workers are no Python script"),
        (["--max-restarts", "1"], {"imports": "torch,no_such"}, "no_such is not installed"),
        (["--max-restarts", "1"], {"environ": {"PYTHON_EXEC": "nsys"}}, "PYTHON_EXEC names the interpreter"),
        (["--max-restarts", "1"], {"text": 'os.environ["OMP_NUM_THREADS"] = "1"'}, "sets a variable that is read"),
    ],
)
def test_other_workers_have_none_and_it_is_said_why(tmp_path, argv, more, why):
    assert why in reason(tmp_path, *argv, **more)


def test_a_module_is_looked_at_where_it_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text('os.environ["OMP_NUM_THREADS"] = "1"')
    for name, why in (("train", True), ("elsewhere.train", False)):
        given = parse_arguments(["--max-restarts", "1", "-m", name], {})[0]
        options = LaunchOptions.of(given, lambda _: 1, {})
        assert bool(why_not_warm(options, wanted="auto", imports="torch", environ={})) is why


def test_what_is_no_source_file_is_started_as_it_is(tmp_path):
    for name in (str(tmp_path), str(tmp_path / "gone.py")):
        options = LaunchOptions.of(parse_arguments([name], {})[0], lambda _: 1, {})
        assert why_not_warm(options, wanted="on", imports="torch", environ={}) == f"{name} is no Python source file"
