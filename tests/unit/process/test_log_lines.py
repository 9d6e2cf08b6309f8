"""The log lines of launchers and rank monitors, for people and for programs."""

import json
import logging
import re
import socket
import sys

from nvrx_core.process.log_lines import log_formatter

HOST = socket.gethostname()


def record(message="text 1", level=logging.WARNING, exc_info=None, **extra):
    made = logging.LogRecord("nvrx_launcher", level, "file", 1, message, (), exc_info)
    vars(made).update(extra)
    return made


def test_a_line_of_one_node_names_its_program():
    line = log_formatter("text", "ft_launcher", "job", several_nodes=False).format(record())
    assert line.endswith(" WARNING [ft_launcher] text 1")


def test_a_line_of_several_nodes_names_host_and_job_as_well():
    line = log_formatter("text", "ft_launcher", "100%", several_nodes=True).format(record())
    assert line.endswith(f" WARNING [ft_launcher {HOST} 100%] text 1")
    long = log_formatter("text", "rank monitor", "j" * 300, several_nodes=True).format(record())
    assert f"[rank monitor {HOST} {'j' * 40}...]" in long


def test_each_line_of_a_text_names_host_and_job_where_there_are_several_nodes():
    text = log_formatter("text", "ft_launcher", "job", several_nodes=True).format(record("it has failed\nTraceback"))
    assert [line.partition("]")[2] for line in text.split("\n")] == [" it has failed", " Traceback"]
    assert text.count(f" WARNING [ft_launcher {HOST} job] ") == 2


def test_a_json_line_has_what_is_known():
    formatter = log_formatter("json", "ft_launcher", "job", several_nodes=True)
    line = json.loads(formatter.format(record("two\nlines")))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "schema": 1, "level": "WARNING", "program": "ft_launcher", "host": HOST, "job": "job", "message": "two\nlines",
    }  # fmt: skip


def test_a_json_line_has_node_cycle_rank_and_traceback_where_there_are_some():
    position = {"node": 0, "cycle": 2}
    formatter = log_formatter("json", "ft_launcher", "job", several_nodes=True, position=lambda: position)
    try:
        raise ValueError("wrong")
    except ValueError:
        text = formatter.format(record(exc_info=sys.exc_info(), rank=3))
    line = json.loads(text)
    assert "\n" not in text
    assert (line["node"], line["cycle"], line["rank"]) == (0, 2, 3)
    assert line["traceback"].endswith("ValueError: wrong")
