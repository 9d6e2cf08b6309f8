from dataclasses import replace

import pytest
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.log_options import LogOptions

from nvrx_core.errors import ConfigurationError

PREFIX = ("--ft-per-cycle-applog-prefix", "/logs/train.log")
SERVER = (*PREFIX, "--ft-enable-log-server", "true")


def options(*argv: str, nodes: int = 1, backend: str = "c10d", **environ: str) -> LogOptions:
    return LogOptions.of(parse_arguments([*argv, "train.py"], environ)[0], nodes, backend)


def test_there_are_none_by_default():
    assert options() == replace(LogOptions(), leaf_queue=16384)
    assert not options(*PREFIX).has_server


def test_a_variable_gives_them_as_well():
    assert options(PET_FT_PER_CYCLE_APPLOG_PREFIX="/logs/train").prefix == "/logs/train"


@pytest.mark.parametrize(("text", "is_on"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_the_server_is_switched_by_a_word(text, is_on):
    assert options(*PREFIX, "--ft_enable_log_server", text).has_server is is_on


def test_a_file_of_the_launchers_needs_the_server():
    assert options(*PREFIX, "--ft-nvrx-logfile", "/logs/nvrx.log").has_server


@pytest.mark.parametrize(("nodes", "count", "leaves"), [
    (1, 0, 0), (1536, 0, 0), (1537, 0, 2), (4000, 0, 3), (4000, 1, 0), (2, 4, 4),
])  # fmt: skip
def test_leaves_come_with_the_nodes_or_as_they_are_given(nodes, count, leaves):
    found = options(*SERVER, "--ft-log-aggregator-count", str(count), nodes=nodes)
    assert (found.leaves, found.root_port) == (leaves, 50051 + leaves)
    ports = {found.leaf_of(f"node{number}") for number in range(200)}
    assert ports == (set(range(50051, 50051 + leaves)) or {50051})


@pytest.mark.parametrize(("nodes", "given", "queue"), [
    (2, -1, 16384), (1536, -1, 393_216), (10_000, -1, 365_824), (2, 7, 7), (7000, -1, 358_400),
])  # fmt: skip
def test_the_queue_of_a_leaf_grows_with_its_nodes(nodes, given, queue):
    assert options(*SERVER, "--ft-log-leaf-max-queue-chunks", str(given), nodes=nodes).leaf_queue == queue


def test_the_derived_token_tells_jobs_apart():
    assert LogOptions.derived_token("a") == LogOptions.derived_token("a") != LogOptions.derived_token("b")
    assert len(LogOptions.derived_token("a")) == 64


@pytest.mark.parametrize(("argv", "backend", "option"), [
    (("--ft-per-cycle-applog-prefix", "logs/train.log"), "c10d", "--ft-per-cycle-applog-prefix"),
    (("--ft-per-cycle-applog-prefix", "/logs/"), "c10d", "--ft-per-cycle-applog-prefix"),
    ((*PREFIX, "--ft-nvrx-logfile", "nvrx.log"), "c10d", "--ft-nvrx-logfile"),
    (("--ft-nvrx-logfile", "/nvrx.log"), "c10d", "--ft-nvrx-logfile"),
    (("--ft-enable-log-server", "true"), "c10d", "--ft-enable-log-server"),
    ((*PREFIX, "--ft-nvrx-logfile", "/n.log", "--ft-enable-log-server", "no"), "c10d", "--ft-nvrx-logfile"),
    ((*PREFIX, "--tee", "3"), "c10d", "--ft-per-cycle-applog-prefix"),
    ((*PREFIX, "--redirects", "3"), "c10d", "--ft-per-cycle-applog-prefix"),
    ((*PREFIX, "--logs-specs", "mine"), "c10d", "--ft-per-cycle-applog-prefix"),
    (SERVER, "etcd-v2", "--ft-enable-log-server"),
    ((*SERVER, "--ft-log-tls-key", "/key"), "c10d", "--ft-log-tls-certificate"),
    ((*SERVER, "--ft-log-aggregator-count", "-1"), "c10d", "--ft-log-aggregator-count"),
    ((*SERVER, "--ft-log-server-port", "65535", "--ft-log-aggregator-count", "2"), "c10d", "--ft-log-server-port"),
    ((*SERVER, "--ft-log-server-graceful-shutdown-timeout", "inf"), "c10d", "graceful-shutdown"),
])  # fmt: skip
def test_a_wrong_value_names_its_option(argv, backend, option):
    with pytest.raises(ConfigurationError, match=option):
        options(*argv, nodes=2, backend=backend)
