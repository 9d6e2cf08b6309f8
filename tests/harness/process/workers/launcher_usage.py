"""A worker whose command line may be wrong: `launcher_usage.py RANKS`; these ranks refuse it, in each cycle.

`all` refuses on all ranks, `late` on the second one some time after the first one, `once` on rank 1 in the first cycle.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.harness.process.workers.launcher_worker import CYCLE, RANK, say

case = sys.argv[1]
say("start")
if case == "once" and (RANK != 1 or CYCLE):
    time.sleep(0 if CYCLE else 60)
    sys.exit()
if case == "late" and RANK == 1:
    time.sleep(0 if CYCLE else 3)
parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate")
parser.parse_args(["--learning-rat", "0.1", f"--local-rank={os.environ['LOCAL_RANK']}"])
