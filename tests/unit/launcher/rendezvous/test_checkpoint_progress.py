"""Whether restarts lead anywhere, by the checkpoints, and what the coordinator does about it."""

from __future__ import annotations

import itertools
import json

import pytest
from nvrx_launcher.exit_codes import FAILED, REFUSED
from nvrx_launcher.rendezvous.checkpoint_progress import CheckpointProgress, ProgressRules, ProgressState
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.messages import DecisionKind, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.restart_budget import PacingRules


def counts(iterations, *, start=10, most=100, least=1, restarts=(True,) * 4):
    """How many fruitless restarts in a row there are after each cycle."""
    made = CheckpointProgress(ProgressRules(most, least))
    made.cycle_begins([start, -1])
    found = []
    for iteration, is_restart in zip(iterations, restarts, strict=False):
        made = CheckpointProgress(
            ProgressRules(most, least), ProgressState.from_json(json.loads(json.dumps(made.state.to_json())))
        )
        assert made.cycle_ended([-1, iteration], is_restart=is_restart) == ""
        made.cycle_begins([iteration])
        found.append(made.state.fruitless)
    return found


@pytest.mark.parametrize(
    ("iterations", "found", "more"),
    [
        ((10, 10, 10), [1, 2, 3], {}),
        ((10, 11, 11), [1, 0, 1], {}),
        ((10, 9, 10), [1, 2, 3], {}),
        ((10, -1, 10), [1, 1, 2], {}),
        ((16, 22, 22), [1, 0, 1], {"least": 12}),
        ((16, 15, 22), [1, 2, 0], {"least": 12}),
        ((10, 10, 10), [0, 1, 1], {"restarts": (False, True, False)}),
        ((10, 11, 11), [1, 0, 0], {"restarts": (True, False, False)}),
        ((-1, 10, 10), [0, 0, 1], {"start": -1}),
        ((), [], {}),
    ],
)
def test_a_restart_is_fruitless_unless_the_checkpoints_have_moved(iterations, found, more):
    assert counts(iterations, **more) == found


def test_every_short_history_is_counted_as_its_definition_says():
    """Compared with the definition, over all histories of four cycles: unknown, back, the same, one and two further."""
    for iterations in itertools.product((-1, 9, 10, 11, 12), repeat=4):
        for restarts in itertools.product((True, False), repeat=4):
            last, fruitless, expected = 10, 0, []
            for iteration, is_restart in zip(iterations, restarts, strict=True):
                if iteration >= last + 1:
                    last, fruitless = iteration, 0
                elif iteration >= 0 and is_restart:
                    fruitless += 1
                expected.append(fruitless)
            assert counts(iterations, restarts=restarts) == expected


@pytest.mark.parametrize(
    ("most", "ends"), [(1, [True]), (3, [False, False, True]), (0, [False] * 9), (-1, [False] * 9)]
)
def test_a_job_is_given_up_after_so_many_fruitless_restarts(most, ends):
    made = CheckpointProgress(ProgressRules(most))
    made.cycle_begins([5])
    assert [bool(made.cycle_ended([5], is_restart=True)) for _ in ends] == ends


def job(*, max_restarts=9, **progress):
    """A job of two nodes whose checkpoint is of iteration 7."""
    pacing = PacingRules(backoff=None)
    made = Coordinator(Rules(2, 2, max_restarts, pacing=pacing, progress=ProgressRules(**progress)))
    made.start(now=0.0)
    for node in (0, 1):
        made.received(ready(node, -1, 7), now=0.0)
    return made


def ready(node, cycle, iteration):
    description = NodeDescription(f"host{node}", "a", 1, 2, iteration=iteration)
    return Message(node, MessageKind.READY, cycle, description=description)


def failed(made, iterations):
    """What is decided when a worker fails and the nodes stop; the coordinator goes on from its state."""
    cycle = made.cycle
    made.received(Message(0, MessageKind.FAILED, cycle, "rank 0 has failed"), now=1.0)
    state = CoordinatorState.from_json(json.loads(json.dumps(made.state(now=1.0).to_json())))
    made = Coordinator.from_state(made.rules, state, now=1.0)
    for node, iteration in enumerate(iterations):
        decisions = made.received(ready(node, cycle, iteration), now=1.0)
    return made, decisions


def test_a_job_without_progress_ends_with_the_code_that_says_not_to_start_it_again():
    made, (run,) = failed(job(max_fruitless=2), (7, 7))
    assert run.kind is DecisionKind.RUN
    made, (end,) = failed(made, (-1, 7))
    assert (end.kind, end.code) == (DecisionKind.END, REFUSED)
    assert end.reason == (
        "2 cycles in a row without progress: the last checkpoint is of iteration 7, and was of 7 before; "
        "1 more would be progress"
    )


def test_a_node_that_reads_a_newer_checkpoint_counts():
    made, (run,) = failed(job(max_fruitless=1), (7, 8))
    assert run.kind is DecisionKind.RUN
    _, (end,) = failed(made, (8, 8))
    assert end.reason.startswith("1 cycle without progress: the last checkpoint is of iteration 8")


def test_restarts_that_are_spent_are_the_failure_of_the_workers():
    _, (end,) = failed(job(max_restarts=0, max_fruitless=1), (7, 7))
    assert (end.kind, end.code) == (DecisionKind.END, FAILED)


def test_a_lost_node_makes_no_cycle_fruitless():
    made = job(max_fruitless=1)
    made.lost(1, "its lease", now=1.0)
    made.received(ready(0, 0, 7), now=1.0)
    (run,) = made.received(ready(2, -1, 7), now=1.0)
    assert run.kind is DecisionKind.RUN
