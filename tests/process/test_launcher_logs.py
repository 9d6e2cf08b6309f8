"""The launcher's own log lines: which job and host they are of, and as JSON for programs."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.harness.process.launch import Nodes, Start

HOST = socket.gethostname()


def json_lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def test_each_line_of_a_job_of_several_nodes_names_host_and_job(nodes: Nodes) -> None:
    ends = [job.finish() for job in nodes(2, "done", "--nnodes", "2")]
    assert [code for code, _ in ends] == [0, 0], ends
    for _, log in ends:
        assert log.splitlines()
        assert all(f"[ft_launcher {HOST} job]" in line for line in log.splitlines()), log


def test_as_json_each_line_is_an_object_and_workers_output_is_as_it_was(nodes: Nodes) -> None:
    options = ("--nnodes", "2", "--max-restarts", "1", "--ft-log-format", "json", "--tee", "1")
    jobs = nodes(2, "killed", *options)
    ends = [job.process.communicate(timeout=60) for job in jobs]
    assert [job.process.returncode for job in jobs] == [0, 0], ends
    lines = [line for _, log in ends for line in json_lines(log)]
    assert all((each["schema"], each["host"], each["job"]) == (1, HOST, "job") for each in lines)
    assert {each["level"] for each in lines} >= {"INFO", "ERROR"}
    assert {each["node"] for each in lines if "node" in each} == {0, 1}
    assert {each["cycle"] for each in lines if "cycle" in each} == {0, 1}
    assert [each["rank"] for each in lines if "was ended by SIGKILL" in each["message"] and "rank" in each] == [1]
    assert all("[default" in line for out, _ in ends for line in out.splitlines())


def test_its_form_is_a_setting_like_the_others(launcher: Start) -> None:
    code, log = launcher("done", NVRX_FT_LOG_FORMAT="json").finish()
    assert (code, [each["program"] for each in json_lines(log)][-1]) == (0, "ft_launcher")
    code, log = launcher("done", "--ft-log-format", "xml").finish()
    assert code == 2
    assert "log_format" in log or "--ft-log-format" in log
    assert "'text' or 'json'" in log


def test_a_rank_monitor_logs_in_the_same_form(launcher: Start) -> None:
    options = ("--max-restarts", "1", "--ft-rank-section-timeouts", "step:0.5", "--ft-log-format", "json")
    code, log = launcher("hangs", *options).finish()
    assert code == 0, log
    lines = json_lines(log)
    assert any(each["program"] == "rank monitor" and "is hung" in each["message"] for each in lines), lines
