"""Runs jobs, one after another, from a seed on: `python -m tests.harness.process.chaos --seed 7 --seconds 600`."""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import re
import signal
import sys
import time
from dataclasses import replace

from .run import play
from .schedule import LONGEST, SPAN, draw

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run jobs; return how many have failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.process.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20), help="of the first job")
    parser.add_argument("--jobs", type=int, default=1, help="how many, each with the next seed")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin further jobs for so long")
    parser.add_argument("--span", type=float, default=SPAN, help="seconds of a job in which blows begin")
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds that a blow lasts at most")
    parser.add_argument("--only", default="", help="blows, and kinds of processes, with commas between them")
    parser.add_argument("--fix", action="append", default=[], help="a field of the shape, as in worker=wrapped")
    parser.add_argument("--keep", default="", help="numbers of the blows that are left, the first is 0")
    parser.add_argument("--show", action="store_true", help="print what is drawn, and run nothing")
    parser.add_argument("--go-on", action="store_true", help="after a failure as well")
    parser.add_argument("--known", default="$^", help="failures with this text are counted, and one line is shown")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.nice(5)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed, seed, end = 0, given.seed, time.monotonic() + given.seconds
    while seed < given.seed + given.jobs or time.monotonic() < end:
        only = tuple(filter(None, given.only.split(",")))
        fixed = dict(each.split("=", 1) for each in given.fix)
        schedule = draw(seed, span=given.span, longest=given.longest, only=only, fixed=fixed)
        if given.keep:
            schedule = replace(schedule, blows=tuple(schedule.blows[int(each)] for each in given.keep.split(",")))
        print(schedule, flush=True)
        seed += 1
        if given.show:
            continue
        try:
            print("  " + play(schedule), flush=True)
        except AssertionError as failure:
            if known := re.search(given.known, str(failure)):
                print(f"KNOWN seed {schedule.seed}: {known[0]}", flush=True)
                continue
            print(f"FAILED {failure}", flush=True)
            failed += 1
            if not given.go_on:
                break
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
