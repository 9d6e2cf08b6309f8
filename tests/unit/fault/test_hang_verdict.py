"""Who is to blame for a hang: whoever others wait for, and who waits for nobody; else nobody."""

import json
import random
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from nvrx_core.collective import Collective
from nvrx_core.fault.hang_report import EXITED, EXITING, HangReport, RankCondition, Waiting
from nvrx_core.fault.hang_verdict import HangOutcome, HangVerdict, judge, with_peers_stalled
from nvrx_core.fault.stack_text import Frame

USERS, OTHER = Frame("/job/train.py", 88, "next_batch"), Frame("/job/data.py", 7, "read")
REDUCE = Frame("/job/train.py", 90, "step")
WORLD = frozenset(range(4))


def stands(rank, begun=56, **more):
    """A rank that waits for nobody."""
    counts = begun if isinstance(begun, dict) else {"0": begun}
    fields = {"host": f"node{rank}", "place": USERS, "wait": "a lock", "silent": 12.4, "begun": counts}
    return HangReport(rank=rank, initial_rank=rank, **fields | more)


def waits(rank, number=57, operation="all_reduce", group="0", *, peers=(), ranks=(), **more):
    """A rank in a collective."""
    found = Collective(operation, group, "" if group == "0" else group, number, frozenset(ranks), frozenset(peers))
    fields = {"place": REDUCE, "waiting": Waiting.WAITS, "collective": found, "begun": {group: number}}
    return stands(rank, **fields | more)


def inside_torch(rank, begun):
    """A rank of which its own process does not tell whether it waits for others."""
    return stands(rank, begun, waiting=Waiting.MAY_WAIT, place=REDUCE)


def verdict(*reports, ranks=WORLD):
    return judge({report.rank: report for report in reports}, ranks)


def blamed(*reports, ranks=WORLD):
    return set(verdict(*reports, ranks=ranks).culprits)


def test_the_rank_that_has_not_joined_is_named_with_its_place_and_those_that_wait():
    found = verdict(waits(0), waits(1), stands(3), waits(2))
    assert found.culprits == (3,)
    assert found.outcome is HangOutcome.CULPRITS
    assert found.sentence == (
        "rank 3 (node3) stands at train.py:88 in next_batch for 12.4 s, waiting for a lock; ranks 0-2 wait for it in "
        "all_reduce #57 of the default group"
    )


def test_the_sentence_has_what_is_known_besides():
    dead = stands(
        3,
        place=USERS,
        inner=Frame("/lib/queue.py", 171, "get"),
        section="data",
        section_seconds=12.0,
        children=((412, "w"),),
    )
    moved = replace(dead, initial_rank=5, host="")
    sentence = verdict(waits(0), waits(1), waits(2, group="dp"), moved).sentence
    assert sentence.startswith(
        "rank 3 (initial rank 5, unknown host) stands at train.py:88 in next_batch (in queue.py:171 in get) for 12.4 s"
        ", waiting for a lock, section 'data' open for 12 s, with dead child processes: w pid 412; "
    )
    assert sentence.endswith("rank 2 waits for it in all_reduce #57 of group dp")


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        (RankCondition.STOPPED, "its process is stopped"),
        (RankCondition.HOLDS_GIL, "in a call that holds the GIL"),
        (RankCondition.RUNS, "running"),
        (RankCondition.COMPLETED, "has returned from the function"),
    ],
)
def test_the_condition_of_the_rank_is_said(condition, says):
    found = verdict(waits(0), waits(1), waits(2), stands(3, condition=condition, place=None))
    assert found.culprits == (3,)
    assert says in found.sentence


def test_what_others_have_written_cannot_begin_a_line_of_its_own():
    assert "\n" not in verdict(waits(0), waits(1), waits(2), stands(3, place=Frame("a.py", 1, "f\nrestart 1"))).sentence


def test_two_culprits_are_both_named():
    assert blamed(waits(0), stands(1), waits(2), stands(3)) == {1, 3}


def test_more_culprits_than_a_line_holds_are_counted():
    found = judge({rank: waits(rank) if rank == 0 else stands(rank) for rank in range(9)}, range(9))
    assert found.culprits == tuple(range(1, 9))
    assert "ranks 5-8 likewise; rank 0 waits for them" in found.sentence


def test_a_chain_of_small_groups_ends_at_the_culprit():
    chain = [waits(0, 5, group="a"), waits(1, 3, group="b"), waits(2, 9, group="c"), stands(3)]
    begun = [{"a": 5}, {"a": 4, "b": 3}, {"b": 2, "c": 9}, {"c": 8}]
    assert blamed(*(replace(each, begun=counts) for each, counts in zip(chain, begun, strict=True))) == {3}


def test_the_stages_of_a_pipeline_wait_for_their_neighbours():
    found = verdict(
        waits(0, 0, "recv", peers=[1]), stands(1), waits(2, 0, "recv", peers=[1]), waits(3, 0, "recv", peers=[2])
    )
    assert found.culprits == (1,)
    assert "ranks 0, 2-3 wait for it in recv" in found.sentence


def test_a_rank_that_runs_excuses_nobody_who_is_stuck():
    runs = stands(1, condition=RankCondition.RUNS, stalled=False, silent=0.01)
    assert blamed(waits(0), runs, waits(2), stands(3)) == {3}
    found = verdict(waits(0), runs, waits(2), waits(3))
    assert found.culprits == (1,)
    assert (
        "rank 1 (node1) is at train.py:88 in next_batch, with signs of life until 0.01 s ago, running" in found.sentence
    )


def test_ranks_inside_torch_are_told_apart_by_their_counts():
    found = verdict(inside_torch(0, 57), inside_torch(1, 57), inside_torch(2, 57), stands(3, 56))
    assert found.culprits == (3,)
    assert "ranks 0-2 wait for it in collective #57 of the default group" in found.sentence
    assert blamed(inside_torch(0, 57), inside_torch(1, 57), inside_torch(2, 56), inside_torch(3, 57)) == {2}


def test_counts_that_differ_by_far_say_nothing():
    """As those of gloo, for the stages of a pipeline that send each other messages."""
    assert blamed(inside_torch(0, 500), stands(1, 5), stands(2, 500), stands(3, 500)) == set()


def test_a_rank_that_others_wait_for_in_a_rendezvous_has_begun_fewer():
    inside = [waits(rank, 0, "rendezvous", "", rendezvous=2) for rank in (0, 1, 2)]
    found = verdict(*inside, stands(3, rendezvous=1))
    assert found.culprits == (3,)
    assert "in the creation of a process group" in found.sentence


def test_the_members_of_a_group_are_those_that_the_collective_names():
    reports = [
        waits(0, 3, group="a", ranks=[0, 1]),
        stands(1, begun={"a": 2}),
        waits(2, 3, group="b"),
        stands(3, begun={"b": 2}),
    ]
    assert blamed(*reports) == {1, 3}
    assert blamed(reports[0], reports[1], stands(2, begun={"a": 1}), stands(3, begun={})) == {1}


def test_a_group_of_which_nobody_else_speaks_concerns_all():
    assert blamed(waits(0, 0, group=""), waits(1, 0, group=""), stands(2), waits(3, 0, group="")) == {2}


def test_a_rank_that_was_stopped_inside_a_collective_is_named():
    assert blamed(waits(0), waits(1), waits(2), stands(3, 57, condition=RankCondition.STOPPED)) == {3}


def test_ranks_that_wait_for_each_other_are_not_named():
    ring = [waits(rank, 0, "recv", peers=[(rank + 1) % 4]) for rank in range(4)]
    found = verdict(*ring)
    assert (found.outcome, found.culprits) == (HangOutcome.EACH_OTHER, ())
    assert "rank 3 waits in recv from rank 0" in found.sentence
    assert found.confidence == 0.0


def test_a_long_list_of_those_that_wait_is_cut():
    ring = {rank: waits(rank, 0, "recv", peers=[(rank + 1) % 9]) for rank in range(9)}
    assert judge(ring, range(9)).sentence.endswith("; and so on")


def test_nobody_is_named_where_all_have_joined():
    found = verdict(*map(waits, range(4)))
    assert (found.outcome, found.culprits) == (HangOutcome.ALL_JOINED, ())
    moving = stands(3, 57, stalled=False, condition=RankCondition.RUNS)
    found = verdict(waits(0), waits(1), waits(2), moving)
    assert found.culprits == ()
    assert "rank 3 at train.py:88 in next_batch, running" in found.sentence


def test_a_rank_that_stands_elsewhere_is_named_where_the_others_wait_for_something_that_is_not_counted():
    found = verdict(waits(0), waits(1), waits(2), stands(3, 57))
    assert found.culprits == (3,)
    assert found.confidence < 0.8


def test_ranks_that_call_different_collectives_are_told_by_their_number():
    found = verdict(waits(0), waits(1), waits(2, operation="barrier"), waits(3))
    assert (found.outcome, found.culprits) == (HangOutcome.MISMATCH, (2,))
    assert "rank 2 waits in barrier #57" in found.sentence
    even = verdict(waits(0), waits(1), waits(2, operation="barrier"), waits(3, operation="barrier"))
    assert (even.outcome, even.culprits) == (HangOutcome.MISMATCH, ())


def test_nobody_is_named_where_all_stand_alike():
    found = verdict(*map(stands, range(4)))
    assert (found.outcome, found.culprits) == (HangOutcome.ALIKE, ())
    assert found.sentence == (
        "all ranks are alike, none is to blame; ranks 0-3 at train.py:88 in next_batch, waiting for a lock"
    )


def test_ranks_at_one_place_are_not_alike_where_their_groups_have_begun_more():
    """As of those that train in a thread of which nothing is known."""
    found = verdict(stands(0, 57), stands(1), stands(2, 57), stands(3, 57))
    assert (found.outcome, found.culprits) == (HangOutcome.UNKNOWN, ())


def test_nobody_is_named_where_each_stands_elsewhere():
    found = verdict(*(stands(rank, place=None if rank == 0 else Frame("a.py", rank, "f")) for rank in range(4)))
    assert (found.outcome, found.culprits) == (HangOutcome.UNKNOWN, ())
    assert "rank 0 at an unknown place, waiting for a lock; rank 1 at a.py:1 in f" in found.sentence


def test_a_rank_that_stands_beside_others_that_go_on_is_named():
    going = {"stalled": False, "condition": RankCondition.RUNS}
    assert blamed(stands(0, **going), stands(1), stands(2, **going), stands(3, **going)) == {1}
    done = {"condition": RankCondition.COMPLETED}
    assert blamed(stands(0, **done), stands(1), stands(2, **done), stands(3, **done)) == {1}


def test_the_rank_with_the_lowest_step_is_named():
    assert blamed(stands(0, step=8), stands(1, step=7), stands(2, step=8), stands(3, step=8)) == {1}


def test_a_single_rank_is_named():
    assert blamed(stands(0), ranks=[0]) == {0}


def test_a_reserve_is_never_named():
    assert blamed(waits(0), waits(1), stands(2), stands(3, 0, condition=RankCondition.RESERVE)) == {2}


def test_a_rank_without_a_report_is_named_if_the_others_can_only_wait_for_it():
    found = verdict(waits(0), waits(1), waits(3))
    assert (found.outcome, found.culprits, found.missing) == (HangOutcome.NO_REPORT, (2,), (2,))
    assert found.sentence.endswith("no report of rank 2 in time")
    found = verdict(waits(0), waits(1))
    assert (found.outcome, found.culprits) == (HangOutcome.UNKNOWN, ())
    assert found.sentence.endswith("no report of ranks 2-3 in time")
    found = verdict(waits(0, 0, "recv", peers=[2]), stands(1), stands(3))
    assert found.culprits == (2,)


def test_it_is_said_why_a_rank_has_no_report():
    absent = [
        HangReport(rank=rank, initial_rank=rank, condition=RankCondition.UNKNOWN, stalled=False, wait=why)
        for rank, why in ((1, "never monitored"), (2, "never monitored"))
    ]
    found = verdict(waits(0), *absent)
    assert (found.outcome, found.culprits, found.missing) == (HangOutcome.UNKNOWN, (), (1, 2, 3))
    assert found.sentence.endswith("; no report of ranks 1-2 (never monitored); no report of rank 3 in time")


def test_of_a_rank_whose_interpreter_ends_it_is_said_so():
    found = verdict(stands(0, place=None, wait=EXITING, silent=12.0), waits(1), waits(2), waits(3))
    assert found.culprits == (0,)
    assert " stands at the end of its interpreter for 12 s; ranks 1-3 wait for it in" in found.sentence


def test_who_is_named_is_named_without_the_report_of_another_one():
    found = verdict(waits(0), waits(1), stands(3))
    assert (found.culprits, found.missing) == ((3,), (2,))


counts = st.dictionaries(st.sampled_from("ab"), st.integers(0, 3), max_size=2)
collective = st.builds(
    Collective, st.sampled_from(["all_reduce", "barrier", "recv", "rendezvous"]), st.sampled_from(["a", "b", ""]),
    number=st.integers(0, 3), ranks=st.frozensets(st.integers(0, 4), max_size=5),
    peers=st.frozensets(st.integers(0, 4), max_size=2),
)  # fmt: skip
report = st.builds(
    HangReport, rank=st.just(0), initial_rank=st.just(0), condition=st.sampled_from(RankCondition),
    waiting=st.sampled_from(Waiting), place=st.sampled_from([None, USERS, OTHER]), stalled=st.booleans(),
    collective=st.none() | collective, begun=counts, rendezvous=st.integers(0, 2), step=st.integers(-1, 1),
)  # fmt: skip
jobs = st.lists(report, min_size=1, max_size=5).map(
    lambda found: {rank: replace(each, rank=rank, initial_rank=rank) for rank, each in enumerate(found)}
)


@given(jobs, st.randoms(use_true_random=False))
def test_to_exchange_ranks_exchanges_them_in_the_verdict_and_nothing_else(job, chance):
    size = 5
    new = list(range(size))
    chance.shuffle(new)

    def moved(each):
        found = each.collective
        if found is not None:
            ranks, peers = (frozenset(new[rank] for rank in some) for some in (found.ranks, found.peers))
            found = replace(found, ranks=ranks, peers=peers)
        return replace(each, rank=new[each.rank], collective=found)

    before = judge(job, range(size))
    after = judge({new[rank]: moved(each) for rank, each in job.items()}, range(size))
    if before.outcome is not HangOutcome.MISMATCH:
        assert set(after.culprits) == {new[rank] for rank in before.culprits}
    assert (after.outcome, after.confidence) == (before.outcome, before.confidence)


@given(jobs, st.integers(0, 4))
def test_a_missing_report_never_makes_another_rank_a_culprit(job, lost):
    whole = judge(job, job)
    rest = {rank: each for rank, each in job.items() if rank != lost}
    assert set(judge(rest, job).culprits) <= {*whole.culprits, lost}


@given(jobs)
def test_the_order_of_the_reports_changes_nothing(job):
    shuffled = dict(random.Random(1).sample(list(job.items()), len(job)))
    assert judge(shuffled, job) == judge(job, job)


def test_a_rank_that_may_wait_is_not_named_beside_one_that_surely_does_not():
    """The last stage of a pipeline waits for the one that hangs, and both are behind."""
    assert blamed(waits(0), waits(1), stands(2, 50), inside_torch(3, 40)) == {2}


def test_that_only_one_rank_reports_its_steps_makes_no_culprit_of_the_others():
    alike = [stands(rank, 57, step=4 if rank == 0 else -1) for rank in range(4)]
    assert blamed(*alike) == set()


def test_a_rank_that_has_returned_is_not_named_beside_one_that_is_there():
    returned = [stands(rank, {}, condition=RankCondition.COMPLETED) for rank in (1, 2)]
    assert blamed(waits(0, ranks=WORLD), *returned, stands(3)) == {3}
    alone = verdict(waits(0), waits(1), waits(2), stands(3, condition=RankCondition.COMPLETED))
    assert (alone.culprits, alone.confidence) == ((3,), 0.6)


def test_a_rank_that_is_no_member_of_what_the_others_wait_in_is_not_missed():
    found = verdict(*(waits(rank, ranks=(0, 1, 2)) for rank in range(3)), stands(3, {}))
    assert (found.outcome, found.culprits) == (HangOutcome.ALL_JOINED, ())


def test_a_rank_that_is_at_work_is_named_with_little_confidence():
    at_work = stands(0, stalled=False, condition=RankCondition.RUNS)
    found = verdict(at_work, waits(1), waits(2), waits(3))
    assert (found.culprits, found.confidence) == ((0,), 0.5)
    assert found.sentence.startswith("rank 0 (node0) is at ")


def test_a_joined_rank_whose_threads_get_no_time_is_not_named():
    starved = stands(3, {}, waiting=Waiting.MAY_WAIT, condition=RankCondition.HOLDS_GIL)
    assert blamed(waits(0), waits(1), stands(2), starved) == {2}


def test_the_memory_of_a_verdict_grows_with_the_ranks_and_not_with_their_square():
    world = 4096
    reports = [
        inside_torch(rank, {"0": 57, f"tp{rank // 8}": 9}) if rank % 2 else stands(rank, {"0": 56, f"tp{rank // 8}": 9})
        for rank in range(world)
    ]
    reports[0] = stands(0, {"0": 56, "tp0": 8})
    tracemalloc.start()
    try:
        found = verdict(*reports, ranks=range(world))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.outcome is HangOutcome.CULPRITS
    assert len(found.culprits) == world // 2
    assert peak < 32 << 20, "half of the ranks wait for the other half: in one set for all"


def test_of_a_rank_whose_process_has_exited_it_is_said_so():
    gone = stands(3, condition=RankCondition.COMPLETED, wait=EXITED)
    assert verdict(waits(0), waits(1), waits(2), gone).sentence.startswith("rank 3 (node3) has exited; ranks 0-2 wait ")


def test_a_rank_that_is_silent_for_half_as_long_as_an_overdue_one_counts_as_stalled():
    others = {rank: stands(rank, silent=silent, stalled=False) for rank, silent in ((1, 5.0), (2, 4.9))}
    reports = {0: waits(0, silent=10.0), **others}
    assert [each.stalled for each in with_peers_stalled(reports).values()] == [True, True, False]
    assert not any(each.stalled for each in with_peers_stalled(others).values())
    assert with_peers_stalled({}) == {}


def test_a_verdict_is_read_as_it_was_written():
    found = verdict(waits(0), stands(3), waits(2))
    assert HangVerdict.decode(found.encode()) == found


@pytest.mark.parametrize(
    "changed",
    [
        {"outcome": "guilty"},
        {"culprits": [1]},
        {"culprits": "-1"},
        {"sentence": "a\nb"},
        {"sentence": 1},
        {"sentence": "x" * 8001},
        {"confidence": "x"},
    ],
)
def test_a_malformed_verdict_is_an_error(changed):
    with pytest.raises(ValueError, match=r"."):
        HangVerdict.decode(json.dumps(json.loads(verdict(waits(0)).encode()) | changed))


def test_a_missing_rank_is_named_only_where_it_would_have_a_report_if_it_could_answer():
    reports = {rank: waits(rank) for rank in (0, 1, 2)}
    assert judge(reports, WORLD).culprits == (3,)
    assert judge(reports, WORLD, may_name_missing=False).culprits == ()


def test_a_sentence_names_at_most_eight_runs_of_ranks_and_how_many_more():
    every_other = {rank: waits(rank) for rank in range(0, 1000, 2)}
    found = judge(every_other, range(1000))
    assert "no report of ranks 1, 3, 5, 7, 9, 11, 13, 15 and 492 more in time" in found.sentence
    assert found.missing == tuple(range(1, 1000, 2))
    assert HangVerdict.decode(found.encode()) == found


def test_a_sentence_of_many_long_reports_can_be_read():
    long = {rank: stands(rank, section="x" * 5000) for rank in range(4)}
    found = judge(long | {4: waits(4)}, range(5))
    assert len(found.sentence) == 8000
    assert HangVerdict.decode(found.encode()) == found
