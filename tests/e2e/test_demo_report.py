"""What the demo makes of the lines that its ranks write: history, tables and pictures. No process is started."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from demo_parts.durations import after_timeout, duration
from demo_parts.picture import draw_runs
from demo_parts.recording import draw_terminal
from demo_parts.report import Outcome, fault_table, run_table
from demo_parts.run_history import Began, Injection, Recovery, RunHistory
from demo_parts.terminal import Recording, Style, Terminal

SVG = "{http://www.w3.org/2000/svg}"
Line = dict[str, Any]


def step(at: float, number: int, iteration: int = 0) -> Line:
    return {"event": "step", "initial_rank": 0, "monotonic": at, "step": number, "loss": 2.0, "iteration": iteration}


def resumed(at: float, rank: int, number: int, iteration: int, world_size: int = 2) -> Line:
    fields = {"step": number, "iteration": iteration, "world_size": world_size}
    return {"event": "resumed", "initial_rank": rank, "monotonic": at, **fields}


def injected(at: float, kind: str, rank: int, number: int, iteration: int = 0) -> Line:
    fields = {"kind": kind, "rank": rank, "step": number, "iteration": iteration, "pid": 77}
    return {"event": "fault_injected", "initial_rank": rank, "monotonic": at, **fields}


def restart(
    initial_rank: int, rank: int, at: float, *, cause: str, world_size: int, active: bool = True, iteration: int = 1
) -> Line:
    """`at` is when the rank was back in the function; it had noticed the fault, of 0.9 s, 10 ms before."""
    fields = {"iteration": iteration, "rank": rank, "world_size": world_size, "active": active}
    marks = {"occurred": 0.9, "noticed": at - 0.01, "entered": at}
    told = {"cause": {"interruption": cause, "rank": 0, "initial_rank": 0, "message": "m"}, "marks": marks}
    return {"event": "restart", "initial_rank": initial_rank, "monotonic": at, **fields, **told}


def trained(weights: str, world_size: int = 2) -> Line:
    fields = {"weights": weights, "sample": "def f():", "world_size": world_size}
    return {"event": "trained", "initial_rank": 0, "monotonic": 99.0, **fields}


def began() -> list[Line]:
    first = [resumed(0.0, 0, 0, 0), resumed(0.0, 1, 0, 0)]
    return [*first, *(step(0.1 * number, number) for number in range(10))]


def replaced() -> tuple[RunHistory, list[object]]:
    """Rank 0 is killed at 1.0 s, a spare takes over; the spare's first step comes last."""
    history = RunHistory(ranks=2, spares=2)
    lines = [
        *began(),
        injected(1.0, "kill", 0, 10),
        restart(1, 1, 1.2, cause="TERMINATED", world_size=3),
        restart(3, 0, 1.3, cause="TERMINATED", world_size=3),
        restart(2, 2, 1.9, cause="TERMINATED", world_size=3, active=False),
        step(1.4, 8, 1),
        resumed(1.4, 1, 8, 1),
        resumed(1.5, 3, 8, 1),
        *(step(1.5 + 0.1 * number, number, 1) for number in range(9, 20)),
        trained("ab" * 32),
    ]
    return history, list(history.read(lines))


def test_a_recovery_lasts_from_the_fault_to_the_slowest_rank_that_trains() -> None:
    history, happenings = replaced()
    assert [type(happening) for happening in happenings] == [Began, Injection, Recovery]
    (recovery,) = history.recoveries
    assert recovery.noticed is not None
    assert recovery.entered is not None
    assert [round(seconds, 6) for seconds in (recovery.noticed, recovery.entered, recovery.resumed)] == [0.29, 0.3, 0.5]
    assert (recovery.step, recovery.reached, recovery.repeated, recovery.world_size) == (8, 10, 2, 2)
    assert (recovery.lost, recovery.took_over) == ((0,), {3: 0})
    assert (history.places, history.reserve, list(history.lost)) == ({1: 1, 3: 0}, [2], [0])
    assert history.kept_its_size


def test_a_step_that_rank_0_has_done_and_not_told_of_is_not_repeated() -> None:
    history = RunHistory(ranks=2)
    entries = [restart(rank, rank, 1.2, cause="TERMINATED", world_size=2) for rank in range(2)]
    list(history.read([*began(), *entries, *(resumed(1.5, rank, 11, 1) for rank in range(2))]))
    assert [recovery.repeated for recovery in history.recoveries] == [0]


def test_a_restart_that_nothing_explains_is_none_of_the_recoveries() -> None:
    """As of torchrun, when a process fails as it ends or starts."""
    history = RunHistory(ranks=1, protected=False)
    lines = [resumed(1.0, 0, 0, 0, 1), injected(2.0, "exception", 0, 4), resumed(3.0, 0, 0, 1, 1)]
    told = list(history.read([*lines, resumed(9.0, 0, 2, 2, 1)]))
    assert [type(each) for each in told] == [Began, Injection, Recovery]
    assert history.recoveries[0].resumed == 1.0


def test_the_table_names_the_spare_that_took_over() -> None:
    history, _ = replaced()
    head, row = fault_table(history, None)
    assert head.split() == ["fault", "rank", "step", "noticed", "back", "in", "next", "step", "process", "again"]
    assert row.split() == ["SIGKILL", "0", "10", "290", "ms", "300", "ms", "500", "ms", "→", "spare", "3", "2"]


def test_a_timeout_is_shown_apart_from_what_came_after_it_and_counts_from_the_last_sign_of_life() -> None:
    history = RunHistory(ranks=2)
    entries = [restart(rank, rank, 2.93, cause="SOFT_TIMEOUT", world_size=2) for rank in range(2)]
    assert len(list(history.read([*began(), injected(1.0, "hang_recv", 1, 10), *entries]))) == 2
    list(history.read([resumed(2.95, rank, 8, 1) for rank in range(2)]))
    assert "2 s + 20 ms  2 s + 30 ms  2 s + 50 ms" in fault_table(history, None)[1]
    assert [after_timeout(seconds) for seconds in (1.994, 2.018, 4.2)] == ["2.0 s", "2 s + 18 ms", "4 s + 200 ms"]
    assert [duration(seconds) for seconds in (0.0234, 0.9996, 9.16)] == ["23 ms", "1.0 s", "9.2 s"]


@pytest.mark.parametrize(
    ("interruption", "message", "name"),
    [
        ("TERMINATED", "process ended by SIGKILL", "SIGKILL"),
        ("BASE_EXCEPTION", "KeyboardInterrupt: ", "KeyboardInterrupt"),
        ("EXCEPTION", "package.module.Broken: a: b", "Broken"),
        ("HARD_TIMEOUT", "no progress for 4 s", "hard timeout"),
    ],
)
def test_a_fault_of_the_viewers_is_named_by_the_wrappers_events(interruption: str, message: str, name: str) -> None:
    history = RunHistory(ranks=2)
    entries = [restart(rank, rank, 1.2, cause=interruption, world_size=2) for rank in range(2)]
    for entry in entries:
        entry["cause"]["message"] = message
    list(history.read([*began(), *entries, *(resumed(1.5, rank, 8, 1) for rank in range(2))]))
    assert fault_table(history, None)[1].startswith(f"{name} ")


def under_torchrun(*lines: Line) -> RunHistory:
    history = RunHistory(ranks=2, protected=False)
    list(history.read([*began(), *lines]))
    return history


def test_the_reaction_of_torchrun_to_a_fault_is_reported() -> None:
    nvrx, _ = replaced()
    fault = injected(1.0, "kill", 0, 10)
    recovered = under_torchrun(fault, resumed(9.0, 0, 8, 1), resumed(10.2, 1, 8, 1))
    twice = under_torchrun(fault, resumed(9.0, 0, 8, 1), resumed(20.0, 0, 8, 2), resumed(20.0, 1, 8, 2))
    gave_up, silent = (under_torchrun(fault, resumed(9.0, 0, 8, 1)) for _ in range(2))
    gave_up.over, silent.over, silent.silent = 13.34, 55.0, True
    hung = under_torchrun(fault, resumed(15.0, 0, 8, 1), resumed(15.0, 1, 8, 1))
    hung.cut_off[hung.injections[0]] = 6.0
    never = under_torchrun()
    told = [
        fault_table(nvrx, history)[1].partition("spare 3")[2].strip()
        for history in (recovered, twice, gave_up, silent, hung, never)
    ]
    assert [re.split(r"  +", each) for each in told] == [
        ["9.2 s", "2 / 2"],
        ["19.0 s, 2 attempts", "2 / 2"],
        ["gave up after 12.3 s", "2 / -"],
        ["hung after 54.0 s", "2 / -"],
        ["hung, 14.0 s", "2 / 2"],
        ["never came to it", "2 / -"],
    ]


def test_weights_are_compared_where_no_rank_was_missing() -> None:
    undisturbed = RunHistory(ranks=2)
    list(undisturbed.read([*began(), trained("ab" * 32)]))
    same, _ = replaced()
    other = under_torchrun(trained("cd" * 32))
    fewer = RunHistory(ranks=2)
    entry = restart(1, 0, 1.3, cause="TERMINATED", world_size=1)
    lines = [*began(), injected(1.0, "kill", 0, 10), entry, resumed(1.4, 1, 8, 1, world_size=1), trained("ef" * 32)]
    list(fewer.read(lines))
    histories = {"undisturbed": undisturbed, "nvrx": same, "torchrun": other, "fewer": fewer, "none": under_torchrun()}
    rows = run_table([Outcome(name, history) for name, history in histories.items()])
    ends = [row.rpartition("   ")[2].strip() for row in rows[1:]]
    assert [end.split(", ")[-1] for end in ends[:4]] == [
        "2  abababababab",
        "the same bits",
        "other bits",
        "of fewer ranks",
    ]
    assert rows[5].endswith("ended at step 10")


def test_the_same_run_makes_the_same_picture() -> None:
    pictures = [draw_runs({"nvrx": replaced()[0], "torchrun": under_torchrun(trained("cd" * 32))}) for _ in range(2)]
    assert pictures[0] == pictures[1]
    picture = ElementTree.fromstring(pictures[0])
    assert [line.get("class") for line in picture.iter(f"{SVG}polyline")] == ["nvrx", "nvrx", "torchrun"]
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert "SIGKILL: 500 ms" in texts
    assert {"rank 0", "rank 1", "spare 2", "spare 3"} <= set(texts)


def recorded() -> Recording:
    recording = Recording()
    for second in range(100):
        recording.lines.append((float(second), Terminal.styled(f"line {second} <&>", Style.GREEN)))
        recording.bars += [(second + tenth / 10, f"step {10 * second + tenth}") for tenth in range(10)]
    recording.bars.append((99.95, ""))
    return recording


def test_the_terminal_is_drawn_small_and_the_same_again() -> None:
    drawn = draw_terminal(recorded(), "make demo")
    assert drawn == draw_terminal(recorded(), "make demo")
    assert len(drawn.encode()) < 200_000
    root = ElementTree.fromstring(drawn)
    texts = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    assert {f"line {second} <&>" for second in range(100)} <= set(texts)
    assert "$ make demo" in texts
    assert sum(text.startswith("step ") for text in texts) > 50


def test_each_line_of_the_drawn_terminal_keeps_its_columns() -> None:
    recording = Recording(lines=[(0.0, f"  a  {Terminal.styled('bc', Style.RED)}    d e")])
    drawn = draw_terminal(recording, "x")
    spans = [(span.get("x"), span.text) for span in ElementTree.fromstring(drawn).iter(f"{SVG}tspan")]
    assert spans == [("31.6", "a"), ("55.0", "bc"), ("101.8", "d e")]
