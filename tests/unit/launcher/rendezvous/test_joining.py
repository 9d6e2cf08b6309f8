"""Options that contradict each other are refused before a node joins; others that have no effect are named."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous.joining import join_job

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
        join_job(options, None, cleanup, None, config=config, iteration=lambda: -1)
    assert message in str(error.value)
