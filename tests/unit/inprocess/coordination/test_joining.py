"""The flow by which the ranks that enter a call agree on a generation."""

import itertools
import json

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.joining import JoinOperations
from nvrx_core.inprocess.protocol.join import (
    BY,
    CONFLICT,
    EXPIRED,
    MET,
    MOVED,
    Conflicting,
    Expired,
    Join,
    Joined,
    Superseded,
)
from nvrx_core.progress.page import Page
from nvrx_core.store.keys import StoreKeys
from tests.harness.asked import Asking, ask, drive


def terms(by, **values):
    return json.dumps({BY: by, **values})


def join(size=2, incarnation="me", **options):
    return Join(Asking(), Asking(), size, incarnation, **options)


def through(flow, *steps):
    """Run a flow, which must await these operations; each is with its answer. Returns the result."""
    rest = list(steps)

    def answer(asked):
        wanted, reply = rest.pop(0)
        assert asked == wanted
        return reply

    result = drive(flow.run(), answer)
    assert not rest
    return result


def looks(generation, verdict):
    return ask("read_verdict", generation), verdict


def claims(generation, present="me", incarnation="me"):
    return ask("claim", generation, incarnation), present


def counts(generation, number):
    return ask("count_claim", generation), number


def waits(generation, verdict):
    return ask("await_verdict", generation), verdict


def closes(generation, verdict, present=None):
    return ask("close", generation, verdict), verdict if present is None else present


FIRST = (looks(0, None), claims(0), counts(0, 1), waits(0, MOVED))
"""The first generation is closed as moved, after this rank has counted its claim."""


@pytest.mark.parametrize("ended", range(40))
def test_the_first_open_generation_is_found_in_few_looks(ended):
    looked = []

    def answer(asked):
        if asked.name == "read_verdict":
            looked.append(asked)
            return MET if asked.args[0] < ended else None
        assert asked == ask("claim", ended, "me")
        raise EOFError

    with pytest.raises(EOFError):
        drive(join().run(), answer)
    assert len(looked) <= 1 + 2 * ended.bit_length()


def test_who_completes_the_number_closes_the_generation_and_has_joined_it():
    complete = ask("all_claimed", 0), True
    assert through(join(3), looks(0, None), claims(0), counts(0, 3), complete, closes(0, MET)) == Joined(0)


def test_who_is_not_the_last_waits_for_the_verdict_and_follows_it():
    rest = looks(1, None), claims(1), counts(1, 2), waits(1, MET)
    assert through(join(3), looks(0, None), claims(0), counts(0, 2), waits(0, MOVED), *rest) == Joined(1)


def test_a_claim_counted_twice_closes_nothing():
    incomplete = ask("all_claimed", 0), False
    assert through(join(), looks(0, None), claims(0), counts(0, 2), incomplete, waits(0, MET)) == Joined(0)


@pytest.mark.parametrize("verdict", [MOVED, MET])
def test_a_place_that_is_taken_is_of_an_earlier_start(verdict):
    rest = looks(1, None), claims(1), counts(1, 1), waits(1, MET)
    assert through(join(), looks(0, None), claims(0, "another"), closes(0, MOVED, verdict), *rest) == Joined(1)


def test_who_finds_its_place_taken_after_it_had_one_is_superseded():
    assert through(join(), *FIRST, looks(1, None), claims(1, "another")) == Superseded(1, "another")


TOLD = "rank 1 (node1 pid 11) and another process (node2 pid 22) were started with the same RANK"


def contested(verdict, *rest):
    mine, terms_of = "node1/11/me", terms("rank 1 (node1 pid 11)")
    flow = join(2, mine, terms=terms_of, unique=True)
    first = looks(0, None), claims(0, mine, mine), (ask("agree", 0, terms_of), terms_of), counts(0, 1), waits(0, MOVED)
    taken = looks(1, None), claims(1, "node2/22/you", mine), closes(1, CONFLICT + TOLD, verdict)
    return through(flow, *first, *taken, *rest)


def test_two_living_processes_of_one_rank_are_a_conflict_that_names_both():
    assert contested(CONFLICT + TOLD) == Conflicting(1, TOLD)


def test_the_other_process_may_have_met_the_others_by_then():
    assert contested(MET) == Superseded(1, "node2/22/you")


def test_a_generation_that_has_moved_meanwhile_is_not_contested():
    mine, terms_of = "node1/11/me", terms("rank 1 (node1 pid 11)")
    rest = claims(2, mine, mine), (ask("agree", 2, terms_of), terms_of), counts(2, 1), waits(2, MET)
    assert contested(MOVED, looks(2, None), *rest) == Joined(2)


@pytest.mark.parametrize(("verdict", "end"), [(CONFLICT, Conflicting), (EXPIRED, Expired)])
def test_an_end_that_a_rank_on_its_way_finds_is_its_own(verdict, end):
    why = f"{verdict}why"
    assert through(join(), *FIRST, looks(1, why)) == end(1, "why")
    late = looks(0, why), looks(1, None), claims(1), counts(1, 1), waits(1, why)
    assert through(join(), *late) == end(1, "why"), "the first one may be of an earlier start"


def test_who_goes_on_for_a_dead_rank_begins_with_its_claim_and_waits_for_nobody():
    def dead():
        return Join(Asking(), None, 2, "me", claimed=4)

    assert through(dead(), claims(4), counts(4, 1)) == Joined(4)
    assert through(dead(), claims(4, "another")) == Superseded(4, "another")
    complete = ask("all_claimed", 4), True
    assert through(dead(), claims(4), counts(4, 2), complete, closes(4, MET)) == Joined(4)
    rest = looks(5, None), claims(5), counts(5, 1)
    assert through(dead(), claims(4), counts(4, 2), complete, closes(4, MET, MOVED), *rest) == Joined(5)


def test_no_generation_is_closed_for_a_dead_rank_because_another_start_has_claimed_its_place():
    dead = Join(Asking(), None, 2, "me")
    assert through(dead, looks(0, None), claims(0, "another")) == Superseded(0, "another")


def test_the_terms_of_the_first_rank_are_those_of_all():
    mine, first = terms("rank 1", size=2), terms("rank 0", size=2)
    agrees = ask("agree", 0, mine), first
    assert through(join(terms=mine), looks(0, None), claims(0), agrees, counts(0, 1), waits(0, MET)) == Joined(0)


def test_other_terms_are_of_an_earlier_start_until_they_come_again_and_again():
    mine, told = terms("rank 1", size=2), "rank 1 has size=2; rank 0 has size=3"
    steps = [
        (looks(k, None), claims(k), (ask("agree", k, mine), terms("rank 0", size=3)), closes(k, verdict))
        for k, verdict in enumerate((MOVED, MOVED, CONFLICT + told))
    ]
    assert through(join(terms=mine), *itertools.chain(*steps)) == Conflicting(2, told)


def test_a_conflict_of_others_is_passed_by():
    rest = looks(1, None), claims(1), counts(1, 1), waits(1, MET)
    conflict = closes(0, MOVED, CONFLICT + "another start's")
    assert through(join(), looks(0, None), claims(0, "another"), conflict, *rest) == Joined(1)


class Rank:
    """One incarnation of a rank on a store of torch's, as far on its way as it comes alone."""

    def __init__(self, store, member, start):
        self.store, self.keys, self.member = GuardedStore(store), StoreKeys("job", 0, 0), member
        self.operations = JoinOperations(self.store, self.keys, member, Page(2))
        self.flow, self.waits, self.end = join(2, f"{member}, start {start}").run(), None, None

    def go(self):
        """Go on; returns the end, or the generation in which the rank waits."""
        answer = None
        while self.end is None:
            if self.waits is not None:
                if (verdict := self.store.try_get(self.keys.verdict(self.waits))) is None:
                    return self.waits
                answer, self.waits = verdict.decode(), None
            try:
                asked = self.flow.send(answer)
            except StopIteration as end:
                self.end = end.value
                break
            if asked.name == "await_verdict":
                (self.waits,) = asked.args
            else:
                answer = getattr(JoinOperations, asked.name).__wrapped__(self.operations, *asked.args)
        return self.end

    def complete(self):
        control_store = ControlStore(self.store, self.keys.of(self.end.generation))
        control_store.membership.mark_left(self.member)
        control_store.deletion.count_out(0, 2, 2)


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_killed_while_it_joined_does_not_join_a_later_start(first):
    store = dist.HashStore()
    assert Rank(store, 0, 1).go() == 0, "it waits, and is killed"
    ranks = [Rank(store, member, 2) for member in (0, 1)]
    assert [rank.go() for rank in (*ranks, ranks[0])] == [1, Joined(1), Joined(1)]
    for rank in ranks:
        rank.complete()
    ranks = [Rank(store, member, 3) for member in (first, 1 - first)]
    assert [rank.go() for rank in (*ranks, ranks[0])] == [1, Joined(1), Joined(1)]
