"""Who is named as a straggler, and above all who is not: samplers and the detector of a job, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from nvrx_core.fault import stragglers
from nvrx_core.fault.stragglers import NodePaces, Pace, PaceSampler, SectionPaces, StragglerDetector, StragglerNews

FACTOR, STEPS, MEMORY = 2.0, 20, 31
Work = Callable[[int, int], float]
"""The seconds of own work of a rank in a step, by rank and number of the step."""


class Job:
    """A synchronous job: each step takes as long as the slowest rank, whose pages are read every second.

    Args:
        ranks: how many there are.
        node_size: ranks of a node.
    """

    def __init__(self, ranks: int = 8, node_size: int = 4) -> None:
        self.ranks, self.node_size, self.now, self.read_at, self.cycle = ranks, node_size, 0.0, 0.0, 0
        self.detector = StragglerDetector(FACTOR, STEPS)
        self.news = list[StragglerNews]()
        self.begin_cycle()

    def begin_cycle(self, world_size: int = 0) -> None:
        self.cycle += 1
        self.ranks = world_size or self.ranks
        self.detector.begin_cycle(self.cycle, self.ranks)
        self.samplers = [PaceSampler(STEPS) for _ in range(0, self.ranks, self.node_size)]
        self.begin_anew()

    def begin_anew(self) -> None:
        """All ranks restart in their processes."""
        self.runs = dict[tuple[str, int], list[float]]()

    def train(self, seconds: float, rest: float = 0.03, **sections: Work) -> list[StragglerNews]:
        """Train for so long, with a section for each kind of work; return the news."""
        until, first, number = self.now + seconds, len(self.news), 0
        while self.now < until:
            number += 1
            times = [0.0] * self.ranks
            for section, work in sections.items():
                for rank in range(self.ranks):
                    times[rank] += (seconds := work(rank, number))
                    self.runs.setdefault((section, rank), []).append(seconds)
            self.now += max(times) + rest
            if self.now >= self.read_at:
                self.read_at = self.now + stragglers.READ_EVERY
                self.read()
        return self.news[first:]

    def read(self) -> None:
        for section in sorted({section for section, _ in self.runs}):
            for node, sampler in enumerate(self.samplers):
                ranks = range(node * self.node_size, (node + 1) * self.node_size)
                runs = {rank: self.runs[section, rank] for rank in ranks if (section, rank) in self.runs}
                sampler.observe(section, [(rank, len(t), t[-STEPS:]) for rank, t in runs.items()], now=self.now)
        nodes = [NodePaces(self.cycle, f"host-{n}", each.sections()) for n, each in enumerate(self.samplers)]
        self.news += self.detector.evaluate(NodePaces.decode(node.encode()) for node in nodes)


def even(rank: int, number: int) -> float:
    return 0.003


def slow(*ranks: int, seconds: float = 0.041) -> Work:
    return lambda rank, number: seconds if rank in ranks else 0.003


def noisy(seed: int, spread: float = 1.0, base: float = 0.005) -> Work:
    """Work that a busy machine holds up: a run takes up to several times as long, on all ranks alike."""
    draw = random.Random(seed)
    return lambda rank, number: base * (1 + spread * draw.paretovariate(1.5) / 3)


# Who is named


def test_a_rank_that_becomes_slow_is_named_once_and_once_more_when_that_is_over():
    job = Job()
    assert job.train(60, data=even, forward=even) == []
    (found,) = job.train(120, data=slow(5), forward=even)
    assert (found.has_begun, found.ranks, found.host) == (True, (5,), "host-1")
    assert "rank 5 (host-1) is 14 times as slow as the others for " in found.sentence
    assert found.sentence.endswith("steps: data 41 ms (peers 3 ms) of a step of 74 ms")
    assert found.findings[0].runs >= 3 * STEPS
    (over,) = job.train(120, data=even, forward=even)
    assert (over.has_begun, over.ranks) == (False, (5,))
    assert over.sentence.startswith("rank 5 (host-1) is about as fast as the others again, after ")


def test_it_is_named_after_four_samples_each_of_five_seconds_and_twenty_steps_at_least():
    job = Job()
    job.train(60, data=even)
    assert job.train(14, data=slow(5)) == []
    assert len(job.train(16, data=slow(5))) == 1
    job = Job()
    job.train(400, rest=2.0, data=even)
    assert job.train(3 * 20 * 2.5 - 10, rest=2.0, data=slow(5, seconds=0.5)) == []
    assert len(job.train(80, rest=2.0, data=slow(5, seconds=0.5))) == 1


def test_the_ranks_of_a_host_are_named_together_and_sections_too():
    job = Job(ranks=32)
    job.train(60, data=even, forward=even)
    (found,) = job.train(60, data=slow(4, 5, 6, 7), forward=slow(4, 5, 6, 7, seconds=0.02))
    assert (found.ranks, found.host) == ((4, 5, 6, 7), "host-1")
    assert found.sentence.startswith("ranks 4-7 (host-1) are 14 times as slow")
    assert "data 41 ms (peers 3 ms) of a step of 91 ms; forward 20 ms (peers 3 ms)" in found.sentence


@pytest.mark.parametrize(
    ("times", "ranks"),
    [
        ((1, 1, 1, 1, 1, 1, 1.9, 10), (7,)),
        ((1, 1, 1, 1, 1, 1, 1, 1, 1, 1.9, 2.1, 10), (11,)),
        ((1, 1, 1, 1, 1, 1, 1, 1, 1, 1.5, 2.6, 10), (10, 11)),
        ((1, 1, 1, 1, 1, 1, 1, 1, 1, 1.9, 10, 11), (10, 11)),
        ((1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 9, 11), (9, 10, 11)),
    ],
)
def test_a_straggler_is_not_hidden_by_some_that_are_a_little_slow(times, ranks):
    job = Job(ranks=len(times), node_size=len(times))
    job.train(60, data=even)
    news = job.train(120, data=lambda rank, number: 0.01 * times[rank])
    assert sorted((rank, each.has_begun) for each in news for rank in each.ranks) == [(rank, True) for rank in ranks]


def test_a_loader_that_is_slow_from_the_first_step_is_named():
    (found,) = Job().train(90, data=slow(2), forward=even)
    assert "since the first ones: data 41 ms" in found.sentence


def test_the_loaders_of_one_host_of_several_that_are_slow_from_the_first_step_are_named():
    (found,) = Job(ranks=16).train(90, data=slow(4, 5, 6))
    assert (found.ranks, found.host) == ((4, 5, 6), "host-1")


def test_the_loaders_of_two_groups_on_the_only_host_are_not_named():
    assert Job(ranks=8, node_size=8).train(240, data=slow(0, 4)) == []


def test_a_straggler_is_found_again_after_a_restart():
    job = Job()
    job.train(60, forward=even)
    assert len(job.train(60, forward=slow(1))) == 1
    job.begin_cycle()
    (found,) = job.train(60, forward=slow(1))
    assert (found.has_begun, found.ranks) == (True, (1,))
    assert "since" not in found.sentence


def test_what_flaps_is_named_more_and_more_rarely():
    job = Job()
    for _ in range(30):
        job.train(25, data=even)
        job.train(25, data=slow(5))
    begun = [each for each in job.news if each.has_begun]
    assert len(begun) <= 2


def test_a_rank_whose_peers_take_no_time_is_over_a_hundred_times_as_slow():
    job = Job()
    job.train(60, data=lambda rank, number: 0.0)
    (found,) = job.train(300, data=lambda rank, number: 2.0 if rank == 3 else 0.0)
    assert "is over 100 times as slow" in found.sentence
    assert "data 2 s (peers 0 ms)" in found.sentence


# Who is not


def rank_0_saves(rank: int, number: int) -> float:
    return 2.0 if rank == 0 and number % 10 == 0 else 0.003


SILENT: dict[str, dict[str, Work]] = {
    "all alike": {"data": even, "forward": even},
    "rank 0 saves every tenth step": {"data": rank_0_saves, "forward": even},
    "stages of a pipeline": {"forward": lambda rank, number: 0.02 if rank % 4 == 3 else 0.007},
    "one rank of each group loads": {"data": lambda rank, number: 0.05 if rank % 4 == 0 else 1e-5},
    "one rank of each group loads, the others receive": {"data": lambda rank, number: 0.05 if rank % 4 == 0 else 5e-4},
    "within the factor": {"data": slow(3, seconds=0.0058), "forward": even},
    "below a tenth of a step": {"data": slow(3, seconds=0.02), "forward": lambda rank, number: 0.3},
    "a loader of three times": {"data": lambda rank, number: 0.03 if rank == 2 else 0.01},
    "half are slow": {"data": slow(0, 1, 2, 3)},
    "three are slow": {"data": slow(0, 3, 5)},
    "hardly slower than the next one": {"data": lambda rank, number: 0.01 * (1, 1, 1, 1, 1, 1.8, 1.9, 2.2)[rank]},
    "all values between, to ten times": {"data": lambda rank, number: 0.003 * 1.2**rank},
    "one is slowest of many that are slow": {"data": lambda rank, number: 0.01 * (1, 1, 1, 1, 1, 3, 3, 10)[rank]},
    "all values between": {"data": lambda rank, number: 0.003 * (1 + 0.2 * rank)},
    "ranks take turns": {"data": lambda rank, number: 0.04 if number // 15 % 8 == rank else 0.003},
}


@pytest.mark.parametrize("name", SILENT)
def test_nobody_is_named(name):
    assert Job().train(240, **SILENT[name]) == []


BY_DESIGN = {
    "a loader of three times",
    "stages of a pipeline",
    "one rank of each group loads",
    "one rank of each group loads, the others receive",
}
"""What ranks do not become."""


@pytest.mark.parametrize("name", sorted(SILENT.keys() - BY_DESIGN))
def test_nobody_is_named_who_becomes_like_this(name):
    job = Job()
    job.train(60, **dict.fromkeys(SILENT[name], even))
    assert job.train(240, **SILENT[name]) == []


@pytest.mark.parametrize("seed", range(8))
def test_noise_names_nobody(seed):
    assert Job(ranks=4 + seed % 13).train(300, data=noisy(seed), forward=noisy(seed + 1, spread=2)) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_that_holds_up_one_rank_after_the_other_names_nobody(seed):
    """Each rank gets little of a processor for up to twelve seconds, and then another one does."""
    draw, job, victim = random.Random(seed), Job(), 0
    for _ in range(40):
        victim = (victim + draw.randrange(1, 3)) % 8
        job.train(draw.uniform(1.0, 12.0), data=even, forward=slow(victim, seconds=0.03))
    assert job.news == []


def test_all_that_become_slow_at_the_same_time_are_no_stragglers():
    job = Job()
    job.train(60, data=even)
    assert job.train(120, data=lambda rank, number: 0.1) == []


def test_who_waits_in_a_section_while_most_load_their_data_is_no_straggler():
    """The forward pass has a collective: the two ranks that are not slow wait there."""
    job = Job()
    job.train(60, data=even, forward=even)
    assert job.train(120, data=slow(0, 1, 2, 3, 4, 5), forward=slow(6, 7)) == []


def test_who_is_slow_where_all_others_wait_is_a_straggler():
    job = Job()
    job.train(60, data=even, forward=even)
    (found,) = job.train(60, data=slow(5), forward=slow(0, 1, 2, 3, 4, 6, 7))
    assert (found.ranks, found.findings[0].section) == ((5,), "data")


def test_samples_without_a_period_say_nothing():
    detector = StragglerDetector(FACTOR, STEPS)
    detector.begin_cycle(0, 4)
    for runs in range(20, 400, 20):
        paces = [Pace(rank, runs, 0.1 * (rank == 3), 0.0) for rank in range(4)]
        detector.evaluate([NodePaces(0, "host", {"forward": SectionPaces.of(paces)})])
    assert detector.evaluate([]) == []


def test_stages_whose_node_has_the_first_samples_are_no_stragglers():
    """The node with the heavy stages is the first one whose samples are known."""
    detector, news = StragglerDetector(FACTOR, STEPS), []
    detector.begin_cycle(0, 16)
    for number in range(1, 40):
        nodes = [
            NodePaces(0, f"host-{first}", {"forward": SectionPaces.of([
                Pace(rank, 20 * number, 0.03 if rank < 4 else 0.01, 0.1) for rank in range(first, first + 4)
            ])})
            for first in range(0, 16 if number > 2 else 4, 4)
        ]  # fmt: skip
        news += detector.evaluate(nodes)
    assert news == []


def test_fewer_than_four_ranks_are_not_compared():
    assert Job(ranks=3).train(120, data=slow(1)) == []


def test_a_rank_that_runs_a_section_more_often_is_not_compared():
    """Rank 0 evaluates now and then, in the same section."""
    job = Job()
    job.train(60, data=even)
    for _ in range(30):
        for _ in range(10):
            job.runs["data", 0] += [0.05] * 10
            job.train(0.4, data=even)
    assert job.news == []


def test_a_restart_in_the_process_and_a_pause_name_nobody():
    job = Job()
    job.train(60, data=even, forward=even)
    job.begin_anew()
    job.train(60, data=even, forward=even)
    job.now += 600.0
    job.train(60, data=even, forward=even)
    assert job.news == []


def test_another_world_size_is_another_job():
    job = Job()
    job.train(60, forward=even)
    job.begin_cycle(world_size=16)
    assert job.train(60, forward=slow(1)) == []


def test_a_straggler_that_begins_anew_in_its_process_is_one_until_it_is_as_fast_as_the_others():
    job = Job()
    job.train(60, data=even)
    assert len(job.train(60, data=slow(5))) == 1
    job.begin_anew()
    assert job.train(90, data=slow(5)) == []
    (over,) = job.train(60, data=even)
    assert (over.has_begun, over.ranks) == (False, (5,))
    assert over.findings[0].runs > 90 / 0.071


@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_are_exchanged_are_exchanged_in_the_news(seed):
    order = list(range(8))
    random.Random(seed).shuffle(order)
    straight, exchanged = Job(), Job()
    straight.train(60, data=even)
    exchanged.train(60, data=even)
    (one,), (other,) = straight.train(60, data=slow(2)), exchanged.train(60, data=slow(order[2]))
    assert (one.ranks, other.ranks) == ((2,), (order[2],))
    assert one.findings == other.findings


def test_nobody_is_left_out_and_the_slowest_come_first():
    job = Job(ranks=128)
    job.train(60, data=even)
    found = job.train(60, data=lambda rank, number: 0.04 + 0.001 * rank if rank in range(0, 32, 4) else 0.003)
    assert [each.ranks for each in found] == [(rank,) for rank in range(28, -1, -4)]


# Samples


def samples(*observed: tuple[int, Sequence[float], float]) -> list[Pace]:
    sampler, found = PaceSampler(STEPS), []
    for runs, durations, now in observed:
        sampler.observe("data", [(3, runs, durations)], now=now)
        found = [pace for each in sampler.sections().values() for pace in each.slowest]
    return found


def test_a_sample_has_the_median_of_the_last_runs_and_the_time_between_two():
    assert samples((5, (), 0.0), (25, (1.0, 2.0, 9.0), 10.0)) == [Pace(3, 25, 2.0, 0.5)]


def test_the_samples_of_ranks_that_are_no_longer_on_the_node_are_forgotten():
    sampler = PaceSampler(STEPS)
    for number in range(3):
        for section in "data", "forward":
            sampler.observe(section, [(rank, 5 + 20 * number, (1.0,)) for rank in (3, 4)], now=10.0 * number)
    sampler.observe("data", [(4, 65, (1.0,)), (8, 65, (1.0,))], now=30.0)
    found = {section: sorted(pace.rank for pace in each.slowest) for section, each in sampler.sections().items()}
    assert found == {"data": [4], "forward": [3, 4]}
    sampler.observe("data", [(3, 85, (1.0,)), (4, 85, (1.0,))], now=40.0)
    assert [pace.rank for pace in sampler.sections()["data"].slowest] == [4], "rank 3 begins with a new sample"


@pytest.mark.parametrize(
    "observed",
    [
        [(4, (1.0,), 0.0), (24, (1.0,), 10.0)],
        [(5, (1.0,), 0.0), (24, (1.0,), 10.0)],
        [(5, (1.0,), 0.0), (400, (1.0,), 4.9)],
        [(5, (1.0,), 0.0), (25, (), 10.0)],
        [(5, (1.0,), 0.0), (25, (1.0,), 10.0), (6, (1.0,), 20.0)],
        [(50, (1.0,), 0.0), (75, (1.0,), 10.0), (2, (1.0,), 20.0)],
    ],
    ids=["warm-up", "too few runs", "too short", "none has ended", "began anew", "began anew, warm-up"],
)
def test_there_is_no_sample_yet(observed):
    assert samples(*observed) == []


def test_a_large_node_has_the_slowest_ranks_and_the_medians_of_all():
    paces = [Pace(rank, 100, 0.001 * rank, 0.1) for rank in range(101)]
    found = SectionPaces.of(paces)
    assert (found.ranks, found.seconds, found.period) == (101, 0.05, 0.1)
    assert [each.rank for each in found.slowest] == list(range(100, 100 - stragglers.MAX_LISTED, -1))


def test_ranks_of_large_nodes_are_found_by_the_medians_of_the_nodes():
    job = Job(ranks=80, node_size=40)
    job.train(60, data=even)
    (found,) = job.train(60, data=slow(55))
    assert found.ranks == (55,)


# On the wire


def test_the_samples_of_a_node_are_small():
    sections = {name: SectionPaces.of([Pace(r, 123_456, 0.012345, 0.1) for r in range(64)]) for name in "abcdefgh"}
    text = NodePaces(3, "h" * 300, sections).encode()
    assert len(text) < 8 * 32 * 30
    found = NodePaces.decode(text)
    assert (found.cycle, len(found.host), len(found.sections)) == (3, 64, 8)
    assert found.sections["a"].slowest[0] == Pace(0, 123_456, 0.012345, 0.1)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"cycle":0,"host":"","sections":5}', '{"cycle":0,"host":5,"sections":{}}',
        '{"cycle":"0","host":"","sections":{}}', '{"cycle":0,"host":"","sections":{"data":[1,1,1]}}',
        '{"cycle":0,"host":"","sections":{"data":[1,1,1,[1,2,3]]}}',
        '{"cycle":0,"host":"","sections":{"data":[1,1,1,[1,2,3,-4]]}}',
        '{"cycle":0,"host":"","sections":{"data":[0,1,1,[1,2,3,4]]}}',
        '{"cycle":0,"host":"","sections":{"data":[1,1e999,1,[]]}}', '{"cycle":0,"host":"a\\nb","sections":{}}',
        '{"cycle":0,"host":"","sections":{"' + "x" * 97 + '":[1,1,1,[]]}}',
    ],
)  # fmt: skip
def test_malformed_samples_are_refused(text):
    with pytest.raises(ValueError, match="no paces of a node"):
        NodePaces.decode(text)
    with pytest.raises(ValueError, match="no paces of a node"):
        NodePaces.decode(text.encode())


def test_samples_of_another_cycle_do_not_count():
    job = Job()
    job.train(60, data=even)
    job.detector.begin_cycle(99, 8)
    assert job.train(60, data=slow(5)) == []


def test_nothing_is_named_of_no_nodes():
    assert StragglerDetector(FACTOR, STEPS).evaluate([]) == []
