"""Options that contradict each other are refused before a node joins; others that have no effect are named."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous.coordination import LocalCoordination
from nvrx_launcher.rendezvous.joining import _given, join_job

from nvrx_core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("--nnodes", "6:8", "--ft-segment", "4"),
            "--ft-segment: 6 nodes, the minimum of --nnodes, are no segments of 4; write --nnodes 4, or a multiple",
        ),
        (
            ("--nnodes", "2", "--ft-segment", "2", "--rdzv-backend", "static"),
            "--ft-segment: static says itself which nodes take part; leave it out, or write --rdzv-backend c10d",
        ),
    ],
)
def test_nodes_that_cannot_form_segments_are_refused(argv, message):
    given, config = parse_arguments([*argv, "train.py"], {})
    options = LaunchOptions.of(given, lambda _: 1, {})
    with ExitStack() as cleanup, pytest.raises(ConfigurationError) as error:
        join_job(options, None, cleanup, None, config=config, iteration=lambda: -1, stops_within=1.0)
    assert message in str(error.value)


def test_a_node_says_how_long_it_may_take_until_it_is_ready_again():
    given, config = parse_arguments(["train.py"], {})
    options, loop = LaunchOptions.of(given, lambda _: 1, {}), EventLoop()
    with ExitStack() as cleanup:
        cleanup.callback(loop.close)
        joined = join_job(options, loop, cleanup, None, config=config, iteration=lambda: 7, stops_within=105.0)
        assert isinstance(joined, LocalCoordination)
        described = joined._describe()
    assert (described.stops_within, described.iteration) == (105.0, 7)


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_node_says_which_rendezvous_it_was_given(backend):
    given, config = parse_arguments(["--rdzv-backend", backend, "train.py"], {})
    options, loop = LaunchOptions.of(given, lambda _: 1, {}), EventLoop()
    with ExitStack() as cleanup:
        cleanup.callback(loop.close)
        joined = join_job(options, loop, cleanup, None, config=config, iteration=lambda: -1, stops_within=1.0)
        assert ("--rdzv-backend", backend) in joined._describe().given


def test_a_node_says_what_it_was_given_for_the_job():
    argv = ("--nnodes", "1:2", "--max-restarts", "3", "--ft-restart-window", "1234567", "--rdzv-conf", "timeout=7.5")
    given, config = parse_arguments([*argv, "train.py"], {})
    found = dict(_given(LaunchOptions.of(given, lambda _: 1, {}), config))
    assert found.items() >= {
        "--nnodes": "1:2", "--rdzv-backend": "c10d", "--max-restarts": "3", "--restart-policy": "any-failed",
        "--ft-segment": "none", "--ft-restart-window": "1234567", "--ft-max-restarts-in-window": "none",
        "--ft-restart-backoff": "0", "--ft-max-no-progress-cycles": "3", "--ft-min-progress-iterations": "1",
        "--rdzv-conf join_timeout": "7.5", "--rdzv-conf last_call_timeout": "1", "--rdzv-conf keep_alive_interval": "1",
        "--rdzv-conf keep_alive_max_attempt": "5",
    }.items()  # fmt: skip
