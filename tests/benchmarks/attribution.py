"""How well `nvrx-why` names what has failed: precision and recall by class, on the parts of the corpus held out.

python tests/benchmarks/attribution.py [--part development] [--wrong] [--megabytes 256]
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nvrx_core.attribution.reading import verdict_of_files
from tests.attribution.cases import PARTS, cases


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="one part of the corpus; else those held out")
    parser.add_argument("--wrong", action="store_true", help="list the cases that are named wrongly")
    parser.add_argument("--megabytes", type=int, default=0, help="measure the speed on logs of this size, too")
    arguments = parser.parse_args()
    for part in [arguments.part] if arguments.part else PARTS[1:]:
        print(f"{part}:")
        measure(part, wrongly=arguments.wrong)
    if arguments.megabytes:
        measure_speed(arguments.megabytes)


def measure(part: str, *, wrongly: bool) -> None:
    """Print how well the cases of a part are named, and which are named wrongly."""
    right, said, true = Counter[str](), Counter[str](), Counter[str]()
    ranks, hosts, wrong = Counter[bool](), Counter[bool](), list[str]()
    misnamed = 0
    for case in cases(part):
        with tempfile.TemporaryDirectory() as folder:
            verdict = case.verdict(Path(folder))
        true[case.failure] += 1
        said[verdict.failure] += 1
        right[case.failure] += verdict.failure == case.failure
        if case.is_injected and case.failure != "clean":
            ranks[verdict.rank == case.rank] += 1
        misnamed += verdict.rank is not None and verdict.rank != case.rank
        if case.host is not None:
            hosts[verdict.host == case.host] += 1
        if (verdict.failure, verdict.rank) != (case.failure, case.rank):
            wrong.append(f"{case.name}: {case.failure} of {case.rank}, said {verdict.failure} of {verdict.rank}")
            wrong += [
                f"    {each.file.removeprefix(folder)}:{each.line}: {each.text[:150]}" for each in verdict.evidence[:3]
            ]
    print(f"{'class':20} {'cases':>5} {'precision':>9} {'recall':>7} {'F1':>6}")
    scores = []
    for failure in sorted(true | said):
        precision = right[failure] / said[failure] if said[failure] else 0.0
        recall = right[failure] / true[failure] if true[failure] else 0.0
        scores.append(2 * precision * recall / (precision + recall) if right[failure] else 0.0)
        print(f"{failure:20} {true[failure]:5} {precision:9.3f} {recall:7.3f} {scores[-1]:6.3f}")
    print(
        f"macro-F1 over {len(scores)} classes: {sum(scores) / len(scores):.3f} ({true.total()} cases,"
        f" {right.total()} right)"
    )
    if ranks:
        print(f"rank of injected faults named rightly: {ranks[True] / ranks.total():.3f} of {ranks.total()}")
    print(f"a rank named that is not the culprit: {misnamed} of {true.total()}")
    print(f"host named rightly: {hosts[True] / max(1, hosts.total()):.3f} of {hosts.total()}")
    print(f"clean logs called clean: {right['clean'] / max(1, true['clean']):.3f} of {true['clean']}")
    if wrongly:
        print(*wrong, sep="\n")


def measure_speed(megabytes: int) -> None:
    """Print the speed, by CPU time, on a log of a healthy job, and on one whose lines all differ and name errors."""
    healthy = "2026-01-01 00:00:{0:02} [rank{1}] step {2} loss {3:.6f} lr 3.0e-04 tokens/s {4}\n"
    hostile = "sample {0} RuntimeError: {0} timeout of {0} by peer\n"
    with tempfile.TemporaryDirectory() as folder:
        for name, least in (("healthy", megabytes << 20), ("hostile", megabytes << 14)):
            path, lines = Path(folder, f"{name}.log"), 0
            with path.open("w") as log:
                while log.tell() < least:
                    numbers = range(lines, lines + 1_000)
                    if name == "healthy":
                        log.writelines(healthy.format(n % 60, n % 8, n, 1 / (n + 1), n % 9999) for n in numbers)
                    else:
                        words = ("".join(chr(97 + int(digit)) for digit in str(n)) for n in numbers)
                        log.writelines(hostile.format(word) for word in words)
                    lines += 1_000
            began, size = time.process_time(), path.stat().st_size
            verdict_of_files([path])
            seconds = time.process_time() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            speed = f"{size >> 20} MiB at {size / 1e6 / seconds:.1f} MB/s, so 10 GB in {1e10 * seconds / size:.0f} s"
            print(f"{name}: {speed}; {peak:.0f} MiB of memory")


if __name__ == "__main__":
    main()
