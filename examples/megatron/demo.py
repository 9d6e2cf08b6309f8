"""Train a tiny GPT on megatron-core with TP=2 and DP=2, break it twice, and compare with the run that nothing disturbs.

`make demo-megatron`; without a GPU it runs on two CPU ranks over gloo, in about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHAPES = {"TP=2": ["--tensor-parallel", "2"], "DP=2": []}
FAULTS = "1:0:17=exception, 0:1:33=hang_sleep"
FLAGS = [
    "--inprocess-restart", "--inprocess-granularity", "rank", "--inprocess-soft-timeout", "10",
    "--inprocess-hard-timeout", "25", "--inprocess-heartbeat-interval", "1", "--inprocess-heartbeat-timeout", "10",
]  # fmt: skip
LIMIT = 400


def run(output: Path, shape: str, faults: str, steps: int) -> list[dict]:
    """Train under a launcher; returns what its ranks have recorded.

    Raises:
        SystemExit: when the training fails.
    """
    command = [sys.executable, "-m", "nvrx_launcher", "--nproc-per-node", "2", str(HERE / "train.py")]
    command += ["--text", str(ROOT / "LICENSE"), "--output", str(output), "--steps", str(steps), *SHAPES[shape], *FLAGS]
    path = os.pathsep.join(str(ROOT / folder) for folder in ("", "integrations", "launcher"))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "error"}
    log = output.with_name(f"{output.name}.log")
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--faults", faults], env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(LIMIT)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if code:
        raise SystemExit(f"{shape}: the training has failed with code {code}:\n{log.read_text()[-4000:]}")
    return [json.loads(line) for path in sorted(output.glob("rank-*.jsonl")) for line in path.open()]


def losses(lines: list[dict]) -> dict[int, list[float]]:
    """The losses of each step, as it was done last, on the ranks."""
    last = {}
    for line in (line for line in lines if "step" in line):
        last.setdefault(line["step"], {})[line["iteration"]] = line["loss"]
    return {step: found[max(found)] for step, found in last.items()}


def recoveries(lines: list[dict]) -> list[float]:
    """Seconds from each fault to the first step of the next iteration."""
    steps = sorted((line["at"], line["iteration"]) for line in lines if "step" in line)
    faults = sorted(line["fault"] for line in lines if "fault" in line)
    return [next(at for at, number in steps if number == restart) - fault for restart, fault in enumerate(faults, 1)]


def show(shape: str, undisturbed: list[dict], broken: list[dict], steps: int) -> bool:
    """Print what became of one shape; returns whether the losses are equal."""
    expected, found = losses(undisturbed), losses(broken)
    equal = expected == found
    seconds = ", ".join(f"{each:.2f} s" for each in recoveries(broken))
    print(f"{shape}  loss {expected[0]:.4f} -> {expected[steps - 1]:.4f} undisturbed")
    print(f"      loss {found[0]:.4f} -> {found[steps - 1]:.4f} with an exception on rank 1 and a hang on rank 0")
    print(f"      {'equal' if equal else 'NOT EQUAL'} at all {steps} steps; fault to the next step: {seconds}")
    return equal


def main() -> int:
    """Run the demo; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="at least 35, for both faults to be injected; default 40")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default both")
    args = parser.parse_args()
    if args.steps < 35:
        parser.error("--steps must be at least 35, so that both faults are injected")
    equal = True
    with tempfile.TemporaryDirectory(prefix="megatron-") as folder:
        for shape in args.shape or SHAPES:
            print(f"{shape}  training {args.steps} steps, twice ...", flush=True)
            at = Path(folder, shape.replace("=", ""))
            undisturbed = run(at.with_suffix(".calm"), shape, "", args.steps)
            equal &= show(shape, undisturbed, run(at.with_suffix(".broken"), shape, FAULTS, args.steps), args.steps)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
