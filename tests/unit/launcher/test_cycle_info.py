"""The files that describe each cycle, as the launcher of rank 0 writes them."""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing

import pytest
from nvrx_launcher.cycle_info import CycleInfo
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member

SLURM = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"}


def run(cycle, *, first=0, workers=2):
    members = (Member(first, 0, workers), Member(1 - first, workers, workers))
    return Decision(
        DecisionKind.RUN, cycle, "2 nodes", members=members, active_hosts="host[0-1]", spare_hosts="host2",
    )  # fmt: skip


def made(folder, *, environ=SLURM, prefix="/logs/train.log", max_nodes=3):
    return closing(CycleInfo(str(folder), "team/job", prefix, environ, max_nodes=max_nodes))


def read(folder, name):
    return json.loads((folder / f"cycle_info.{name}").read_text())


def test_a_file_describes_a_cycle_while_it_runs(tmp_path):
    folder = tmp_path / "not" / "there"
    with made(folder) as info:
        assert info.environment() == {"NVRX_CURRENT_CYCLE_INFO": f"{folder}/cycle_info.17.current"}
        info.decided(run(0), 0)
    found = read(folder, "17.2.0")
    assert found.pop("cycle_start_time").endswith("Z")
    assert found == {
        "job_id": "17", "attempt_index": 2, "cycle_number": 0, "cycle_end_time": "",
        "cycle_log_file": "/logs/train_cycle0.log", "active_nodes": "host[0-1]", "standby_nodes": "host2",
        "generation": "1", "active_ranks": "0-3",
    }  # fmt: skip
    assert sorted(each.name for each in folder.iterdir()) == ["cycle_info.17.2.0", "cycle_info.17.current"]


@pytest.mark.parametrize("end", [DecisionKind.STOP, DecisionKind.END])
def test_it_has_the_end_of_the_cycle(tmp_path, end):
    with made(tmp_path) as info:
        info.decided(run(0), 0)
        info.decided(Decision(DecisionKind.NOTE, 0, "a line"), 0)
        info.decided(Decision(end, 0, "rank 1 has failed"), 0)
        info.ended()
    found = read(tmp_path, "17.2.0")
    assert found["generation"] == "2"
    assert found["cycle_end_time"] >= found["cycle_start_time"]


def test_only_the_launcher_of_rank_0_writes(tmp_path):
    with made(tmp_path) as info:
        info.decided(run(0, first=1), 0)
        info.decided(Decision(DecisionKind.END, 0, "done"), 0)
    assert list(tmp_path.iterdir()) == []
    with closing(CycleInfo(None, "job", "", {}, max_nodes=1)) as info:
        info.decided(run(0), 0)
        assert info.environment() == {}


def test_the_link_is_to_the_present_cycle_and_a_lost_launchers_file_is_ended(tmp_path):
    with made(tmp_path) as lost:
        lost.decided(run(0), 0)
    with made(tmp_path) as info:
        info.decided(run(1, first=1), 1)
        info.decided(Decision(DecisionKind.STOP, 1, "a node is lost"), 1)
        info.decided(run(2, first=1), 1)
    files = [read(tmp_path, f"17.2.{cycle}") for cycle in range(3)]
    assert [each["generation"] for each in files] == ["2", "2", "1"]
    assert files[0]["cycle_end_time"] == files[1]["cycle_start_time"]
    assert read(tmp_path, "17.current") == files[2]


def test_the_late_end_of_a_cycle_leaves_the_link_to_the_next_one_of_another_launcher(tmp_path, monkeypatch):
    is_linked = threading.Event()
    replace = os.replace

    def replaced(new, path):
        replace(new, path)
        if path.name.endswith("current"):
            is_linked.set()

    monkeypatch.setattr(os, "replace", replaced)
    with made(tmp_path) as late:
        late.decided(run(0), 0)
        assert is_linked.wait(30.0)
        with made(tmp_path) as info:
            info.decided(run(1, first=1), 1)
        late.ended()
    assert read(tmp_path, "17.current")["cycle_number"] == 1


@pytest.mark.parametrize("text", ["", "[]", '{"job_id": "17"}', '{"more": 1}'])
def test_a_strange_file_of_the_cycle_before_is_left_alone(tmp_path, text):
    (tmp_path / "cycle_info.17.2.0").write_text(text)
    with made(tmp_path) as info:
        info.decided(run(1), 0)
    assert (tmp_path / "cycle_info.17.2.0").read_text() == text
    assert read(tmp_path, "17.current")["cycle_number"] == 1


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "team_job.0.0"),
        ({**SLURM, "SLURM_ARRAY_JOB_ID": "9"}, "9.2.0"),
        ({"SLURM_RESTART_COUNT": "x"}, "team_job.0.0"),
    ],
)
def test_the_job_is_slurms_or_has_the_name_that_it_was_given(tmp_path, environ, name):
    with made(tmp_path, environ=environ, prefix="") as info:
        info.decided(run(0, workers=1), 0)
    assert read(tmp_path, name)["cycle_log_file"] == ""


ARRAY = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_RESTART_COUNT": "0", "SLURM_NNODES": "2"}


def test_tasks_of_an_array_that_are_jobs_of_their_own_have_files_of_their_own(tmp_path):
    for task in ("1", "2"):
        environ = {**ARRAY, "SLURM_JOB_ID": f"1{task}", "SLURM_ARRAY_TASK_ID": task}
        with made(tmp_path, environ=environ, max_nodes=2) as info:
            assert info.environment() == {"NVRX_CURRENT_CYCLE_INFO": f"{tmp_path}/cycle_info.9_{task}.current"}
            info.decided(run(0), 0)
    assert [read(tmp_path, f"9_{task}.0.0")["job_id"] for task in (1, 2)] == ["9_1", "9_2"]


@pytest.mark.parametrize(("nodes", "max_nodes"), [("2", 3), ("", 1)])
def test_tasks_of_an_array_that_are_one_job_have_its_files_together(tmp_path, nodes, max_nodes):
    """A cycle of a task with rank 0, and the next one of another task; also where a task's size is unknown."""
    for cycle, task in enumerate(("1", "2")):
        environ = {**ARRAY, "SLURM_NNODES": nodes, "SLURM_JOB_ID": f"1{task}", "SLURM_ARRAY_TASK_ID": task}
        with made(tmp_path, environ=environ, max_nodes=max_nodes) as info:
            info.decided(run(cycle), 0)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "cycle_info.9.0.0", "cycle_info.9.0.1", "cycle_info.9.current",
    ]  # fmt: skip


def test_a_directory_that_cannot_be_written_is_named_once(tmp_path, caplog):
    (tmp_path / "file").touch()
    with made(tmp_path / "file") as info:
        info.decided(run(0), 0)
        info.ended()
        info.decided(run(1), 0)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the file of cycle 0 cannot be written: ")


def test_one_rank_is_no_range(tmp_path):
    with made(tmp_path) as info:
        info.decided(Decision(DecisionKind.RUN, 0, "1 node", members=(Member(0, 0, 1),)), 0)
    assert read(tmp_path, "17.2.0")["active_ranks"] == "0"
