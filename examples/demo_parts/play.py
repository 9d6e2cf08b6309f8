"""The viewer breaks the run: it trains until it is stopped, and shows how it goes on after whatever is done to it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from demo_parts.following import Following
from demo_parts.options import Options
from demo_parts.processes import wait_for
from demo_parts.report import fault_table, legend
from demo_parts.run_history import Began, Recovery, RunHistory
from demo_parts.runs import NvrxRun, Run
from demo_parts.schedule import HARD_TIMEOUT
from demo_parts.signals import Ended
from demo_parts.terminal import Style, Terminal, keyboard, pressed
from demo_parts.view import View

__all__ = ["play"]

BOLD = Style.BOLD


def play(options: Options, terminal: Terminal) -> int:
    """Trains until the viewer stops it; returns the exit code: 1 when the training ended by itself."""
    terminal.say(f"A small transformer learns to write Python, on {options.ranks} ranks, until you stop it.\n", BOLD)
    history, settings = RunHistory(options.ranks, options.spares), options.settings("play")
    with keyboard() as keys, NvrxRun(settings, options.spares) as run:
        try:
            stopped = _Session(run, history, terminal, keys).watch()
        except Ended as ended:
            if ended.signal is not signal.SIGINT:
                raise
            stopped = True
        terminal.end_bar()
        exit_codes = run.exit_codes
    _sum_up(history, terminal)
    if run.left_behind:
        terminal.say(f"failed: processes were left behind: {sorted(run.left_behind)}", Style.RED)
    if not stopped:
        terminal.say(f"The run ended by itself, with exit codes {exit_codes}; see {settings.folder}", Style.RED)
    return 0 if stopped and not run.left_behind else 1


@dataclass(frozen=True)
class _Session:
    """What the viewer sees of a run.

    Attributes:
        run: the run.
        history: what happens in it.
        terminal: where it is shown.
        keys: the viewer's keyboard, if there is one.
    """

    run: Run
    history: RunHistory
    terminal: Terminal
    keys: int | None

    def watch(self) -> bool:
        """Shows the run until it is over; returns whether the viewer has stopped it."""
        following = Following(self.run, self.history, View(self.terminal, self.history, None))
        while True:
            for happening in following.happenings(self.keys):
                if isinstance(happening, Began):
                    self._advise()
                elif isinstance(happening, Recovery):
                    self.terminal.say(f"    {self._processes()}")
            if self.keys is None or not wait_for((), 0, self.keys):
                return False
            if pressed(self.keys) in {"q", "Q", ""}:
                return True

    def _pids(self) -> dict[int, int]:
        """The pid of each rank."""
        places = sorted(self.history.places.items(), key=lambda place: place[1])
        return {rank: self.run.started[initial_rank].pid for initial_rank, rank in places}

    def _processes(self) -> str:
        told = [f"rank {rank}: {pid}" for rank, pid in self._pids().items()]
        told += [f"spare: {self.run.started[initial_rank].pid}" for initial_rank in self.history.reserve]
        return "   ".join(told)

    def _advise(self) -> None:
        pids = list(self._pids().values())
        first, last = pids[0], pids[-1]
        advice = {
            f"kill -9 {first}": "it is lost, and a spare takes its rank",
            f"kill -STOP {last}": f"it stands still, and is ended after {HARD_TIMEOUT:g} s",
            f"kill -STOP {last}; sleep 3; kill -CONT {last}": "it was only slow, and restarts with all",
            f"kill -INT {first}": "it leaves by KeyboardInterrupt",
        }
        self.terminal.say("The processes, by their pids:", BOLD)
        self.terminal.say(f"    {self._processes()}\n")
        self.terminal.say("Break it from another terminal:", BOLD)
        for command, outcome in advice.items():
            self.terminal.say(f"    {command:<46} {outcome}")
        self.terminal.say(f"{'q or ' if self.keys is not None else ''}Ctrl-C ends the training.\n", BOLD)


def _sum_up(history: RunHistory, terminal: Terminal) -> None:
    faults = len(history.recoveries)
    text = (
        f"{history.reached} steps, {faults} {'restart' if faults == 1 else 'restarts'}; every process has been ended."
    )
    terminal.say(f"\n{text}", BOLD)
    if history.recoveries:
        terminal.say()
        for row in fault_table(history, None):
            terminal.say(f"  {row}")
        terminal.say()
        for row in legend(None):
            terminal.say(f"  {row}", Style.DIM)
