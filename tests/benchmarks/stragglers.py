"""What it costs to find stragglers: `stragglers.py [--nodes N] [--ranks-per-node N]`.

For a rank, a section pair with the durations of its last runs, as a share of a step of 10 ms with two sections; for a
launcher, a reading of its ranks' pages; for that of the coordinator, one comparison of all ranks, and the bytes that it
reads for it. Times are of the processor, the least of some rounds for what takes microseconds.
"""

from __future__ import annotations

import argparse
import random
import time
import timeit
from collections.abc import Callable

from nvrx_launcher.stragglers import NODES_A_SECOND

from nvrx_core.fault.stragglers import (
    READ_EVERY,
    SAMPLE_TIME,
    NodePaces,
    Pace,
    PaceSampler,
    SectionPaces,
    StragglerDetector,
)
from nvrx_core.fault_tolerance.recorder import Recorder
from nvrx_core.progress.page import Page
from nvrx_core.progress.sampling import recent_runs

SECTIONS = ("data", "forward")
STEPS, STEP_SECONDS = 20, 0.01
ROUNDS = 5


def microseconds(call: Callable[[], object], number: int = 2_000) -> float:
    return min(timeit.repeat(call, number=number, repeat=20, timer=time.process_time)) / number * 1e6


def texts_of(nodes: int, ranks: int, sample: int) -> list[bytes]:
    """What the nodes have published after so many samples."""
    found = []
    for node in range(nodes):
        paces = [Pace(ranks * node + rank, 500 * sample, random.uniform(0.003, 0.004), 0.01) for rank in range(ranks)]
        sections = dict.fromkeys(SECTIONS, SectionPaces.of(paces))
        found.append(NodePaces(0, f"node-{node:05}", sections).encode().encode())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    given = parser.parse_args()
    ranks = given.nodes * given.ranks_per_node

    recorder = Recorder(Page(1))

    def pair() -> None:
        recorder.open("data")
        recorder.close("data")

    sampler = PaceSampler(STEPS)

    def read() -> None:
        for section in SECTIONS:
            reading = [(rank, *recent_runs(recorder.page, "data", STEPS)) for rank in range(given.ranks_per_node)]
            sampler.observe(section, reading, now=time.monotonic())

    each = microseconds(pair)
    print(f"a section pair: {each:.2f} us; two in a step of 10 ms: {2e-6 * each / STEP_SECONDS:.3%}")
    reading = microseconds(read, 50)
    share = reading / 1e6 / READ_EVERY
    print(f"a reading of {given.ranks_per_node} ranks: {reading:.0f} us every {READ_EVERY:g} s, {share:.3%} of a core")
    detector, took = StragglerDetector(2.0, STEPS), []
    detector.begin_cycle(0, ranks)
    for sample in range(1, ROUNDS + 1):
        texts = texts_of(given.nodes, given.ranks_per_node, sample)
        began = time.process_time()
        detector.evaluate(list(map(NodePaces.decode, texts)))
        took.append(time.process_time() - began)
    every = max(SAMPLE_TIME, given.nodes / NODES_A_SECOND)
    print(f"a comparison of {ranks} ranks: {min(took):.3f} s (the first one {took[0]:.3f} s) every {every:g} s")
    total = sum(map(len, texts))
    print(f"published: {total // given.nodes} bytes a node, {total / 1e6:.2f} MB in all, {given.nodes / every:.0f}/s")


if __name__ == "__main__":
    main()
