"""Who is waited for: one that moves, and has yet to come to where the waiting rank is."""

import pytest

from nvrx_core.liveness.peer_progress import MAX_HOLDERS, MAX_SLOWEST, WAITING_AFTER, PeerProgress
from nvrx_core.progress.stage import Stage


def lease(iteration=1, rendezvous=2, collectives=30, stage=Stage.RUNNING, stalled=0, atomic=0, inside=0):
    return f"7/{stalled}/1234/{stage:d}/{iteration}/{rendezvous}/{collectives}/{atomic}/{inside}"


def behind(*leases, mine=(1, 2, 30)):
    slowest = PeerProgress.of(dict(enumerate(leases)))
    assert PeerProgress.decode(slowest.encode()) == slowest
    return slowest.behind(*mine)


@pytest.mark.parametrize("slow", [lease(iteration=0), lease(rendezvous=1), lease(collectives=29)])
def test_a_peer_that_is_behind_is_waited_for(slow):
    assert behind(lease(), slow, lease(iteration=2))


def test_peers_that_are_not_behind_are_not_waited_for():
    assert not behind(
        lease(), lease(rendezvous=3), lease(collectives=31), lease(iteration=2, rendezvous=0, collectives=0)
    )
    assert not behind()


def test_a_rank_outside_a_rendezvous_waits_for_none():
    assert not behind(lease(rendezvous=0), mine=(1, 0, 30))


@pytest.mark.parametrize("stage", [Stage.WAITING, Stage.LEFT, Stage.EXITED_ABNORMALLY])
def test_a_waiting_peer_is_not_waited_for(stage):
    assert not behind(lease(iteration=0, stage=stage))


def test_a_stalled_peer_is_not_waited_for():
    assert not behind(lease(iteration=0, stalled=1))


def test_some_of_the_slowest_peers_are_named():
    assert behind(lease(), lease(collectives=29), lease(collectives=31), lease(collectives=29)) == (1, 3)
    assert behind(lease(), lease(rendezvous=1)) == (1,)
    assert behind(lease(), lease(iteration=0)) == (1,)
    assert len(behind(*(lease(iteration=0),) * 9)) == MAX_SLOWEST


def test_the_minimum_counts():
    assert behind(lease(rendezvous=5), lease(collectives=29, rendezvous=1), mine=(1, 2, 0))
    assert behind(lease(rendezvous=1, collectives=50), lease(rendezvous=5, collectives=29), mine=(1, 0, 30))


def test_a_malformed_lease_is_ignored():
    assert not behind("", "1/2", "a/b/c/d/e/f/g/h/i")


def waiting(*leases, mine=(1, 1)):
    slowest = PeerProgress.of(dict(enumerate(leases)))
    assert PeerProgress.decode(slowest.encode()) == slowest
    return slowest.waiting(*mine)


def test_members_inside_a_rendezvous_wait_for_a_completed_member_that_has_not_begun_it():
    completed = lease(stage=Stage.WAITING, rendezvous=1)
    assert waiting(lease(inside=WAITING_AFTER), completed, lease(inside=99, rendezvous=3)) == (0, 2)
    assert waiting(lease(inside=40, stalled=1)) == (0,)
    assert len(waiting(*(lease(inside=WAITING_AFTER),) * 9)) == MAX_SLOWEST


@pytest.mark.parametrize(
    "other",
    [lease(), lease(inside=WAITING_AFTER - 1), lease(stage=Stage.STARTING), lease(inside=WAITING_AFTER, rendezvous=1),
     lease(iteration=0, stage=Stage.UNWINDING), lease(iteration=0, inside=WAITING_AFTER), lease(stalled=1)],
)  # fmt: skip
def test_no_member_is_known_to_wait_while_another_may_arrive(other):
    assert waiting(lease(inside=WAITING_AFTER), other) == ()


def test_no_member_waits_if_all_completed_or_wait_in_a_rendezvous_that_was_begun():
    assert waiting(lease(stage=Stage.WAITING)) == waiting() == ()
    assert waiting(lease(inside=WAITING_AFTER), mine=(1, 2)) == waiting(lease(inside=WAITING_AFTER), mine=(0, 1)) == ()


def test_members_in_an_atomic_section_are_listed_with_their_beats():
    leases = [lease(), lease(atomic=2), lease(iteration=0, atomic=1), *[lease(atomic=1)] * 99]
    slowest = PeerProgress.of(dict(enumerate(leases)))
    assert PeerProgress.decode(slowest.encode()) == slowest
    assert slowest.holding(0) == {2: 7}
    assert slowest.holding(1) == {1: 7} | dict.fromkeys(range(3, MAX_HOLDERS + 1), 7)
    assert slowest.holding(2) == {}


@pytest.mark.parametrize(
    "text",
    ["-", "1", "[1]", "[[1, 2], [], null]", "[[], [1], null]", '[[["a", 1, 2, []]], [], null]', "[[], []]",
     "[[[null, 1, 2, []]], [], null]", "[[[1, 2, 3, 4]], [], null]", "[[], [], []]", "[[], [], {}]",
     "[[], [], [1, 2, 3]]"],
)  # fmt: skip
def test_a_malformed_survey_is_refused(text):
    with pytest.raises(ValueError, match="not a survey"):
        PeerProgress.decode(text)
