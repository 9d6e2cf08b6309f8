"""What a run comes to: the table of its restarts, one line that sums it up, and what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from demo_parts.schedule import KINDS, PlannedFault
from demo_parts.story import Restart, Story, Strike
from nvrx_core.events.phases import PHASES

__all__ = ["failures_of", "restart_table", "summary"]


def restart_table(story: Story) -> list[str]:
    """A column for each restart: who was struck by what, and milliseconds by phase, in sum, and to the next step."""
    heads = ("", "rank", "at step", "ranks", *PHASES, "restart", "next step", "steps repeated")
    columns = [heads, *(_column(story, restart) for restart in story.restarts)]
    widths = [max(map(len, column)) for column in columns]
    return [_line(cells, widths) for cells in zip(*columns, strict=True)]


def summary(story: Story) -> str:
    """How far a run came, in what time, with what loss and how many ranks."""
    seconds = story.points[-1].wall - story.points[0].wall
    ranks = f"{story.ranks - len(story.lost)} of {story.ranks} ranks at the end"
    return f"{story.reached} steps in {seconds:.1f} s, loss {story.points[-1].loss:.3f}, {ranks}"


def failures_of(
    story: Story, faults: Sequence[PlannedFault], exit_codes: Sequence[int | None], logs: Path
) -> Iterator[str]:
    """What is not as the schedule foresees it, in sentences."""
    for fault in faults:
        if missing := _missing(story, fault):
            yield f"{fault.kind} on rank {fault.initial_rank} at step {fault.step} {missing}"
    lost = {fault.initial_rank for fault in faults if KINDS[fault.kind].lethal}
    for rank, code in enumerate(exit_codes):
        if rank not in lost and (code != 0 or rank not in story.finished):
            end = "was still there" if code is None else f"ended with code {code}"
            yield f"rank {rank} {end} and did not finish the training; see {logs / f'rank-{rank}.log'}"


def _missing(story: Story, fault: PlannedFault) -> str:
    """What a scheduled fault lacks; nothing when it struck and was answered as it should be."""
    strike = next((strike for strike in story.strikes if strike.is_planned(fault)), None)
    if strike is None:
        return "did not strike"
    restart = story.restart_after(strike)
    if restart is None:
        return "was followed by no restart event"
    if (fault.initial_rank in restart.costs.lost) != KINDS[fault.kind].lethal:
        return (
            f"should have {'ended' if KINDS[fault.kind].lethal else 'spared'} its rank; lost are {restart.costs.lost}"
        )
    return ""


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *values = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return "   ".join((f"{name.strip():<{widths[0]}}", *values))


def _column(story: Story, restart: Restart) -> tuple[str, ...]:
    costs = restart.costs
    strike = story.strike_before(costs.iteration)
    milliseconds = [f"{1000 * seconds:.1f}" for seconds in (*costs.phases.values(), costs.total)]
    ranks = f"{restart.before} → {restart.after}"
    return (*_struck(strike, restart), ranks, *milliseconds, *_again(story, restart, strike))


def _struck(strike: Strike | None, restart: Restart) -> tuple[str, str, str]:
    """What struck whom at which step; a restart that the schedule did not ask for is named by its cause."""
    if strike is None:
        return f"({restart.interruption})", str(restart.costs.cause["initial_rank"]), ""
    return strike.kind, str(strike.initial_rank), str(strike.step)


def _again(story: Story, restart: Restart, strike: Strike | None) -> tuple[str, str]:
    again = story.again_after(restart)
    if again is None or strike is None:
        return "", ""
    return f"{1000 * (again.wall - strike.wall):.1f}", str(again.reached - again.step)
