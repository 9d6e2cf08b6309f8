"""Breaks a training with Lightning on purpose and shows how it recovers: `make demo-lightning`.

Two CPU ranks learn to read handwritten digits under `ft_launcher`, with `InProcessDDPStrategy` and
`FaultToleranceCallback`; a third rank waits in reserve. The training runs twice: undisturbed, and with an exception in
the middle of an epoch, SIGKILL of rank 0, and a hang. At the end stand what each fault cost, and the digests of both
weights. Then `nvrx_lightning.verify` injects an exception at some hooks of the same training, one at a time.

Exit codes: 0 when every fault was followed by a restart and the results are the same bits; 1 otherwise; 2 for wrong
options; 128 + n after signal n.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_parts.durations import after_timeout, duration
from demo_parts.journal import Follower, Line
from demo_parts.processes import Processes, wait_for
from demo_parts.program import run_program
from demo_parts.terminal import Style, Terminal

__all__ = ["main"]

TRAINING = Path(__file__).with_name("demo_training.py")
RANKS, STARTED = 2, 3
FAULTS = {
    "exception": (1, "an exception in the middle of an epoch"),
    "kill": (0, "SIGKILL"),
    "hang": (1, "a hang: sleeps and does not come back"),
}
"""Kind to rank and text."""
FRAME, SILENCE = 0.1, 60.0
HOOKS = ("on_train_epoch_start", "on_train_batch_start", "backward", "optimizer_step", "save_checkpoint")


@dataclass(frozen=True)
class Recovery:
    """What a fault cost: seconds until the slowest rank had done a step again, which one, and the steps repeated."""

    fault: Line
    seconds: float
    step: int
    repeated: int


@dataclass
class RunHistory:
    """A run, by the lines of its ranks."""

    ranks: int = RANKS
    attempt: int = 0
    reached: int = 0
    loss: float = 0.0
    fault: Line | None = None
    finished: list[Line] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    _first: dict[int, Line] = field(default_factory=dict)
    _before: int = 0  # the last step before the fault

    def read(self, lines: Sequence[Line]) -> Iterator[Line | Recovery]:
        """Take in lines; yields faults and recoveries."""
        for line in lines:
            if line["event"] == "fault_injected":
                self.fault = line
                yield line
            elif line["event"] == "finished":
                self.finished.append(line)
            else:
                yield from self._stepped(line)

    def _stepped(self, line: Line) -> Iterator[Recovery]:
        if self.fault is None or line["attempt"] <= self.attempt:
            self._before = max(self._before, line["step"])
        self.reached = max(self.reached, line["step"])
        self.loss = line["loss"] if line["rank"] == 0 else self.loss
        if self.fault is None or line["attempt"] <= self.attempt:
            return
        self._first.setdefault(line["rank"], line)
        if len(self._first) == self.ranks:
            last = max(each["monotonic"] for each in self._first.values())
            repeated = self._before + 1 - min(each["step"] for each in self._first.values())
            self.recoveries.append(Recovery(self.fault, last - self.fault["monotonic"], line["step"], max(0, repeated)))
            self.attempt, self.fault, self._first = line["attempt"], None, {}
            yield self.recoveries[-1]


def main(arguments: Sequence[str]) -> int:
    """Runs the demo; returns its exit code."""
    options = parse(arguments)
    return run_program(lambda terminal: demonstrate(options, terminal))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; what cannot work ends it with code 2."""
    parser = argparse.ArgumentParser("demo.py", description="Trains with Lightning, breaks ranks, shows what it costs.")
    parser.add_argument("--steps", type=int, default=240, metavar="N", help="of each run (default 240)")
    parser.add_argument("--faults", default=",".join(FAULTS), metavar="LIST", help="of exception, kill, hang")
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo-lightning"), metavar="DIR", help="for all files"
    )
    options = parser.parse_args(arguments)
    options.faults = [name for name in options.faults.split(",") if name]
    if unknown := set(options.faults) - FAULTS.keys():
        parser.error(f"--faults: no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    if options.steps < 20 * (len(options.faults) + 1):
        parser.error(f"--steps: {options.steps} are too few for {len(options.faults)} faults")
    return options


def demonstrate(options: argparse.Namespace, terminal: Terminal) -> int:
    """One run after the other, then what there is to say of them."""
    at = [round(options.steps * (number + 1) / (len(options.faults) + 1)) for number in range(len(options.faults))]
    schedule = {str(step): [FAULTS[kind][0], kind] for step, kind in zip(at, options.faults, strict=True)}
    terminal.say(f"A small network on {RANKS} ranks and a reserve, {options.steps} steps, with Lightning.", Style.BOLD)
    histories = {}
    for name, faults in (("undisturbed", {}), ("with faults", schedule)):
        terminal.say(f"\n{name}:", Style.BOLD)
        histories[name] = run(options.output / name.replace(" ", "-"), options.steps, faults, terminal)
    code = sum_up(histories, len(schedule), terminal)
    return max(code, verify(options.output / "verify", terminal))


def run(folder: Path, steps: int, faults: dict[str, list[object]], terminal: Terminal) -> RunHistory:
    """One training."""
    shutil.rmtree(folder, ignore_errors=True)
    records = folder / "records"
    records.mkdir(parents=True)
    processes, history, follower = Processes(folder), RunHistory(), Follower(records)
    arguments = [str(TRAINING), str(folder.resolve()), str(steps), json.dumps(faults)]
    try:
        job = processes.start(
            "launcher", "nvrx_launcher", "--nproc-per-node", str(STARTED), "--max-restarts", "0", *arguments
        )
        heard = time.monotonic()
        while time.monotonic() < heard + SILENCE:
            ended = job.poll() is not None
            lines = follower.lines()
            heard = time.monotonic() if lines else heard
            for happening in history.read(lines):
                tell(happening, terminal)
            terminal.bar(progress(history, steps))
            if ended:
                break
            wait_for([job.pid], FRAME)
    finally:
        processes.close()
    terminal.end_bar()
    terminal.say(progress(history, steps))
    if job.returncode:
        terminal.say(f"failed with code {job.returncode}; see {processes.log_of('launcher')}", Style.RED)
    return history


def tell(happening: Line | Recovery, terminal: Terminal) -> None:
    """Says what has just happened."""
    if isinstance(happening, Recovery):
        took = after_timeout(happening.seconds) if happening.fault["kind"] == "hang" else duration(happening.seconds)
        repeated = f"{happening.repeated} steps repeated"
        terminal.say(f"  ✓ {took} later both ranks have done step {happening.step}, {repeated}", Style.GREEN)
    else:
        kind, rank, step = (happening[name] for name in ("kind", "rank", "step"))
        terminal.say(f"  ✗ step {step}, rank {rank}: {FAULTS[kind][1]}", Style.RED)


def progress(history: RunHistory, steps: int) -> str:
    """A line on how far a run is."""
    if not history.reached:
        return "  starting ..."
    done = 24 * history.reached // steps
    return f"  {'█' * done}{'░' * (24 - done)} step {history.reached}/{steps}  loss {history.loss:.3f}"


def sum_up(histories: dict[str, RunHistory], faults: int, terminal: Terminal) -> int:
    """Says what each run came to; returns the exit code."""
    digests = {name: {line["weights"] for line in history.finished} for name, history in histories.items()}
    terminal.say("\nSHA-256 of the weights at the end:\n", Style.BOLD)
    for name, found in digests.items():
        terminal.say(f"  {name:<12} {', '.join(sorted(digest[:16] for digest in found)) or 'not finished'}")
    undisturbed, disturbed = digests.values()
    same = undisturbed == disturbed and len(undisturbed) == 1
    terminal.say("  the same bits" if same else "  not the same", Style.GREEN if same else Style.RED)
    recovered = len(histories["with faults"].recoveries)
    if recovered < faults:
        terminal.say(f"failed: {recovered} of {faults} faults were followed by a restart", Style.RED)
    return 0 if same and recovered == faults else 1


def verify(folder: Path, terminal: Terminal) -> int:
    """Verifies the training of the demo; returns the exit code."""
    terminal.say("\nThe same training, verified:\n", Style.BOLD)
    folder.mkdir(parents=True, exist_ok=True)
    processes, source = Processes(folder), f"{os.path.relpath(TRAINING)}:make"
    terminal.say(f"  python -m nvrx_lightning.verify {source} --hooks {HOOKS[0]},...")
    try:
        command = processes.start("verify", "nvrx_lightning.verify", source, "--hooks", ",".join(HOOKS))
        while command.poll() is None:
            terminal.bar("  an exception at each hook, one fit after the other ...")
            wait_for([command.pid], FRAME)
    finally:
        processes.close()
    terminal.end_bar()
    printed = processes.log_of("verify").read_text().splitlines() or [""]
    code = int(command.returncode != 0)
    for line in printed if code else printed[-1:]:
        terminal.say(f"  {line}", Style.RED if code else Style.GREEN)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
