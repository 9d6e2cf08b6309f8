"""A `LaunchConfig`, ours or torch's, is read as the command line of the same job."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from nvrx_launcher.launch import LaunchConfig, elastic_launch
from nvrx_launcher.options import Streams
from torch.distributed.launcher.api import LaunchConfig as TorchConfig

from nvrx_core.errors import ConfigurationError


@pytest.fixture
def options_of(monkeypatch):
    """Returns the options of the job that a configuration describes, which is not run."""
    made = []

    class Agent:
        ranks = ()

        def __init__(self, options, *_, **__):
            made.append(options)

        def run(self):
            return 0

        def release(self):
            pass

    monkeypatch.setattr("nvrx_launcher.launch.Agent", Agent)

    def read(config):
        assert elastic_launch(config, "train")("--lr", 1) == {}
        return made.pop()

    return read


@pytest.mark.parametrize("base", [LaunchConfig, TorchConfig])
def test_what_a_users_configuration_has_for_itself_is_no_option(options_of, base):
    @dataclass
    class Mine(base):
        module: str = "mine.train"
        tee: str = "3"

        @property
        def redirects(self):
            return "3"

        def standalone(self):
            return True

    mine = Mine(2, 2, 1, rdzv_backend="c10d", rdzv_endpoint="node0:29500")
    mine.run_path = mine.no_python = True
    mine.master_port = mine.term_timeout = "mine"
    found = options_of(mine)
    assert (found.script, found.arguments) == ("train", ("--lr", "1"))
    assert (found.module, found.run_path, found.no_python) == (False, False, True)
    assert (found.min_nodes, found.endpoint) == (2, ("node0", 29500))
    assert found.tee[0] == found.redirects[0] == Streams()


def test_a_node_rank_orders_the_nodes(options_of):
    assert options_of(LaunchConfig(2, 2, 1, node_rank=1)).order == 1
    theirs = TorchConfig(2, 2, 1, rdzv_backend="c10d")
    theirs.node_rank = 1
    assert options_of(theirs).order == 1


def test_the_fields_of_torchs_configuration_are_at_their_places(options_of):
    theirs = [each.name for each in fields(TorchConfig)]
    assert [each.name for each in fields(LaunchConfig)][: len(theirs)] == theirs
    conf = {"close_timeout": 1}
    ours = LaunchConfig(1, 2, 3, None, "run", "role", "h:1", "c10d", conf, 7, 4, 0.2, "fork", None, {"x": "y"}, "a")
    found = options_of(ours)
    assert (found.rendezvous.join_timeout, found.rendezvous.close_timeout) == (7.0, 1.0)
    assert (found.max_restarts, found.monitor_interval, found.start_method, found.local_addr) == (4, 0.2, "fork", "a")
    assert conf == {"close_timeout": 1}


@pytest.mark.parametrize("kind", [LaunchConfig, TorchConfig])
@pytest.mark.parametrize("backend", ["static", "nvrx-Static"])
def test_the_rank_of_torchs_static_rendezvous_is_the_nodes(options_of, kind, backend):
    conf = {"rank": 1, "timeout": 900}
    found = options_of(kind(2, 2, 1, rdzv_backend=backend, rdzv_endpoint="node0:29500", rdzv_configs=conf))
    assert (found.has_fixed_ranks, found.order, found.rendezvous.is_host) == (True, 1, False)
    assert (found.endpoint, found.rendezvous.join_timeout) == (("node0", 29500), 900.0)
    assert conf == {"rank": 1, "timeout": 900}


def test_a_rank_that_is_none_of_a_node_or_differs_from_it_is_refused(options_of):
    static = {"rdzv_backend": "static", "rdzv_endpoint": "node0:29500"}
    assert options_of(LaunchConfig(2, 2, 1, rdzv_configs={"rank": 1}, node_rank=1, **static)).order == 1
    assert options_of(LaunchConfig(2, 2, 1, node_rank=1, **static)).order == 1
    with pytest.raises(ConfigurationError, match="static has no 'rank'; write --node-rank"):
        options_of(LaunchConfig(2, 2, 1, rdzv_configs={"rank": 0}, node_rank=1, **static))
    with pytest.raises(ConfigurationError, match="c10d has no 'rank'"):
        options_of(LaunchConfig(2, 2, 1, rdzv_configs={"rank": 0}))
    with pytest.raises(ConfigurationError, match="2 is no rank of 2 nodes"):
        options_of(LaunchConfig(2, 2, 1, rdzv_configs={"rank": 2}, **static))


def test_options_without_a_field_are_given_by_name_and_count_before_the_fields(options_of):
    more = {"workers_stop_timeout": 30, "restart-policy": "min-healthy", "max_restarts": 7, "virtual_local_rank": True}
    more |= {"local_ranks_filter": [0, 2], "duplicate_stderr_filters": ("a,b", "c")}
    found = options_of(LaunchConfig(1, 1, 1, max_restarts=2, launcher_options=more))
    assert (found.workers_stop_timeout, found.restart_policy, found.max_restarts) == (30.0, "min-healthy", 7)
    assert found.virtual_local_rank
    assert (found.local_ranks_filter, found.duplicate_stderr_filters) == ({0, 2}, ("a,b", "c"))
    more = {"local_ranks_filter": {2, 0}, "rdzv_conf": {"join_timeout": 30}}
    found = options_of(LaunchConfig(1, 1, 1, launcher_options=more))
    assert (found.local_ranks_filter, found.rendezvous.join_timeout) == ({0, 2}, 30)
    with pytest.raises(ConfigurationError, match="--max_restart=7; did you mean --max-restarts"):
        options_of(LaunchConfig(1, 1, 1, launcher_options={"max_restart": 7}))
    with pytest.raises(ConfigurationError, match="--term-timeout: -1 is no duration"):
        options_of(LaunchConfig(1, 1, 1, launcher_options={"term_timeout": -1}))
