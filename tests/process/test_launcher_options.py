"""Options of torchrun that say how workers are set up, each by what it does to real workers."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from tests.harness.process.launch import Start


def test_a_long_monitor_interval_delays_nothing(launcher: Start) -> None:
    code, log = launcher("killed", "--max-restarts", "1", "--monitor-interval", "3600").finish()
    assert code == 0, log


def test_a_worker_with_a_virtual_local_rank_sees_one_device(launcher: Start) -> None:
    job = launcher("tells", "--virtual-local-rank", CUDA_VISIBLE_DEVICES="6,7")
    code, log = job.finish()
    assert code == 0, log
    told = {each["rank"]: each["environ"] for each in job.events if each["event"] == "told"}
    assert {rank: (each["LOCAL_RANK"], each["CUDA_VISIBLE_DEVICES"]) for rank, each in told.items()} == {
        0: ("0", "6"), 1: ("0", "7"),
    }  # fmt: skip


@pytest.mark.parametrize(("strict", "policy"), [("true", "bind:0"), ("false", "local")])
def test_the_workers_of_the_gpus_of_a_numa_node_are_bound_to_it(launcher: Start, strict: str, policy: str) -> None:
    job = launcher("tells", "--ft-numa-bind-strict", strict, NVRX_GPUS_PER_NUMA="2")
    code, log = job.finish()
    assert code == 0, log
    told = [each for each in job.events if each["event"] == "told"]
    assert [each["policies"] for each in told] == [[policy]] * 2 or "the kernel refuses set_mempolicy" in log


def test_a_numa_node_that_is_not_there_ends_it_before_anything_starts(
    launcher: Start,
) -> None:
    job = launcher("tells", NVRX_GPUS_PER_NUMA="1")
    nodes = [name for name in os.listdir("/sys/devices/system/node") if name.startswith("node")]
    code, log = job.finish()
    assert len(nodes) > 1 or (code == 2 and "NVRX_GPUS_PER_NUMA: there is no NUMA node 1" in log)


def test_lines_with_one_of_the_texts_go_to_one_more_file(launcher: Start, tmp_path: Path) -> None:
    filters = ("--duplicate-stdout-filters", "loss,nothing", "--duplicate-stderr-filters", "0,,,Error 1")
    job = launcher("loses", "--log-dir", str(tmp_path / "logs"), "-t", "3", *filters)
    out, errors = job.process.communicate(timeout=60)
    assert job.process.returncode == 0, errors
    (run,) = (tmp_path / "logs").iterdir()
    kept = sorted((run / "attempt_0" / "filtered_stdout.log").read_text().splitlines())
    found = [(line[:11], line.partition("{")[0][11:]) for line in kept]
    assert found == [(f"[default{n}]:", text) for n in (0, 1) for text in (f"loss {n}, and more", "loss at last")]
    assert (run / "attempt_0" / "filtered_stderr.log").read_text() == "[default1]:Error 1\n"
    assert out.count("step") == 2


PLUG_IN = """\
    import os
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class Specs(LogsSpecs):
        root_log_dir = ""

        def reify(self, envs):
            def name(rank, what):
                return os.path.join(self._root_log_dir, f"{envs[rank]['RANK']}.{what}")
            outs = {rank: name(rank, "out") for rank in envs}
            return LogsDest(outs, {rank: "" for rank in envs}, {0: outs[0]}, {}, {r: name(r, "json") for r in envs})
    """


def test_a_plug_in_says_where_logs_go(launcher: Start, tmp_path: Path) -> None:
    (tmp_path / "plugged.py").write_text(textwrap.dedent(PLUG_IN))
    distribution = tmp_path / "plugged-1.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text("[torchrun.logs_specs]\nmine = plugged:Specs\n")
    job = launcher(
        "prints",
        "--logs-specs",
        "mine",
        "--log-dir",
        str(tmp_path),
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
    )
    out, errors = job.process.communicate(timeout=60)
    assert job.process.returncode == 0, errors
    assert "[default0]:to stdout" in out
    assert "[default1]" not in out
    assert "to stdout" in (tmp_path / "1.out").read_text()
    assert errors.count("to stderr") == 2


def test_an_event_handler_gets_the_events_of_torchrun(launcher: Start) -> None:
    code, log = launcher("fails", "--event-log-handler", "console", "--rdzv-id", "mine").finish()
    assert code == 1
    events = [json.loads(line) for line in log.splitlines() if line.startswith('{"name"')]
    states = [(each["source"], each["metadata"]["state"], each["metadata"]["global_rank"]) for each in events]
    assert states == [
        ("WORKER", "START", 0), ("WORKER", "START", 1), ("WORKER", "TERMINATED", 0), ("WORKER", "FAILED", 1),
        ("AGENT", "FAILED", None),
    ]  # fmt: skip
    assert {each["metadata"]["run_id"] for each in events} == {"mine"}
    failed = json.loads(events[3]["metadata"]["metadata"])
    assert failed["exit_code"] == [3]
