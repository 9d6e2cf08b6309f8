"""What the parts of a control store do to a torch store, and what they tell of it."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.connections import RoundPrefixStore
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import BATCH, GuardedStore
from nvrx_core.inprocess.protocol.death_report import DeathReport
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision, decide
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.protocol.round import Enter, Finish, Round, RoundTimeouts
from nvrx_core.liveness.peer_progress import MinimumProgress, PeerProgress
from nvrx_core.progress.stage import Stage
from nvrx_core.store.keys import StoreKeys
from tests.harness.store_actions import carry_out

KEYS = StoreKeys("job", 0, 0)
MEMBERS = frozenset({0, 1})
SOON = timedelta(milliseconds=20)


class WithoutList(dist.HashStore):
    def list_keys(self):
        raise RuntimeError


@pytest.fixture
def control_store():
    return ControlStore(GuardedStore(dist.HashStore()), KEYS)


def new(member, iteration=0):
    return Round(iteration, member, MEMBERS, RoundTimeouts(60.0, 60.0))


def fault(member):
    return FaultRecord(initial_rank=member, rank=member, interruption="EXCEPTION")


def arrival(member, status=ArrivalStatus.ALIVE):
    return Arrival(initial_rank=member, rank=member, status=status, world_size=2)


def arrive(control_store, machine):
    return carry_out(control_store, machine, machine.arrive(arrival(machine.member), now=1.0))


def event(control_store):
    return control_store.rounds.read_event(0)


def test_the_first_fault_is_the_event(control_store):
    for member in (1, 0):
        machine = new(member)
        assert carry_out(control_store, machine, machine.fault(fault(member))) == []
    control_store.rounds.await_event(0)
    control_store.rounds.announce(0, fault(0))
    assert event(control_store) == fault(1)


def test_the_last_completion_is_the_event(control_store):
    for member in MEMBERS:
        machine = new(member)
        assert carry_out(control_store, machine, machine.completed()) == []
    assert event(control_store) is None


def test_the_last_arrival_publishes_the_decision(control_store):
    control_store.rounds.announce(0, fault(1))
    assert arrive(control_store, new(0)) == []
    assert not control_store.store.store.check([KEYS.round(0).decision])
    arrive(control_store, new(1))
    assert control_store.rounds.await_decision(0) == RoundDecision(
        iteration=0, lost=(), terminated=(), cause=fault(1), culprits=(1,), step=-1
    )


def test_a_member_counted_twice_does_not_close_the_barrier(control_store):
    machine = new(0)
    for _ in range(3):
        carry_out(control_store, machine, new(0).arrive(arrival(0), now=1.0))
    assert not control_store.store.store.check([KEYS.round(0).decision])
    arrive(control_store, new(1))
    assert control_store.rounds.await_decision(0).lost == ()


def test_there_is_one_decision(control_store):
    for member in MEMBERS:
        arrive(control_store, new(member))
    death_report = DeathReport(0, 1, MEMBERS, fault(1))
    assert carry_out(control_store, death_report, death_report.died()) == []
    assert control_store.rounds.await_decision(0).lost == ()
    (enter,) = death_report.decided(control_store.rounds.await_decision(0))
    assert isinstance(enter, Enter)


def test_the_monitor_process_of_the_dead_may_close_the_barrier(control_store):
    arrive(control_store, new(0))
    death_report = DeathReport(0, 1, MEMBERS, fault(1))
    carry_out(control_store, death_report, death_report.died())
    assert control_store.rounds.await_decision(0).lost == (1,)


def test_a_death_report_after_the_completion_gets_the_completion(control_store):
    for member in MEMBERS:
        machine = new(member)
        carry_out(control_store, machine, machine.completed())
    death_report = DeathReport(0, 1, MEMBERS, fault(1))
    assert [type(action) for action in carry_out(control_store, death_report, death_report.died())] == [Finish]


def test_what_is_not_the_store_s_is_handed_back(control_store):
    assert carry_out(control_store, new(0), (Finish("done"),)) == [Finish("done")]


def test_garbage_in_the_store_is_a_failure_of_the_store(control_store):
    control_store.store.store.set(KEYS.round(0).event, "garbage")
    with pytest.raises(StoreFailure, match="not JSON"):
        event(control_store)


def test_an_event_that_cannot_be_read_ends_the_round_and_is_no_cause(control_store):
    control_store.store.store.set(KEYS.round(0).event, "garbage")
    for member in MEMBERS:
        arrive(control_store, new(member))
    assert control_store.rounds.await_decision(0).cause is None


def test_a_wait_has_an_end(control_store):
    with pytest.raises(StoreFailure):
        control_store.rounds.await_decision(0, SOON)


def test_a_wait_in_pieces_ends_when_it_is_stopped(control_store):
    pieces = ControlStore(GuardedStore(control_store.store.store, SOON), KEYS)
    control_store.rounds.announce(0, fault(1))
    pieces.rounds.await_event(0)
    pieces.store.stopped = True
    with pytest.raises(StoreFailure, match="stopped"):
        pieces.rounds.await_event(1)


def test_a_group_uses_the_rendezvous_of_its_rank_0(control_store):
    control_store.rounds.set_rendezvous(0, "node7:1234")
    assert control_store.rounds.await_rendezvous(0) == ("node7", 1234)
    control_store.rounds.set_rendezvous(0, "")
    assert control_store.rounds.await_rendezvous(0) == ("node7", 1234)
    control_store.rounds.set_rendezvous(1, "")
    assert control_store.rounds.await_rendezvous(1) is None


def test_a_lease_moves_on_from_what_it_said(control_store):
    assert control_store.membership.move_lease(0, "", "1") == "1"
    assert control_store.membership.move_lease(0, "1", "2") == "2"
    assert control_store.membership.move_lease(0, "stale", "9") == "2"
    assert control_store.membership.leases([0, 1]) == {0: "2"}
    assert control_store.membership.leases([1]) == {}
    control_store.membership.move_lease(1, "", "5")
    assert control_store.membership.leases([0, 1]) == {0: "2", 1: "5"}


def test_who_has_left_is_known(control_store):
    assert not control_store.membership.have_left([1])
    control_store.membership.mark_left(1)
    assert control_store.membership.have_left([1])
    control_store.membership.wait_left([1], SOON)
    control_store.membership.wait_left([], SOON)
    with pytest.raises(StoreFailure):
        control_store.membership.wait_left([0], SOON)


def test_a_member_has_left_that_has_said_so_or_whose_call_is_deleted(control_store):
    for member in MEMBERS:
        control_store.store.put_once(KEYS.claim(member), f"process {member}")
    assert not control_store.membership.has_left(1)
    control_store.membership.mark_left(1)
    assert control_store.membership.has_left(1)
    control_store.membership.mark_left(0)
    control_store.deletion.count_out(0, 1, 2)
    assert not control_store.membership.have_left([1])
    assert control_store.membership.has_left(1)


def test_the_claims_of_a_completed_call_are_deleted_before_the_marks_of_those_that_have_left(control_store):
    for member in MEMBERS:
        control_store.store.put_once(KEYS.claim(member), f"process {member}")
        control_store.membership.mark_left(member)
    deleted, delete = list[str](), control_store.store.delete
    control_store.store.delete = lambda keys: delete([deleted.append(key) or key for key in keys])
    control_store.deletion.count_out(0, 1, 2)
    claims, marks = [[deleted.index(key(member)) for member in MEMBERS] for key in (KEYS.claim, KEYS.left)]
    assert max(claims) < min(marks)


def test_a_member_leaves_in_one_exchange_for_the_host_may_close_the_store_next():
    class Closing(dist.HashStore):
        closed = False

        def compare_set(self, key, expected, desired):
            assert not self.closed
            self.closed = True
            return super().compare_set(key, expected, desired)

        def check(self, keys):
            raise dist.DistNetworkError("the host has closed the store")

    store = Closing()
    ControlStore(GuardedStore(store), KEYS).membership.mark_left(1)
    assert store.get(KEYS.left(1)) == b"1"


def test_the_keys_of_an_ended_round_are_deleted(control_store):
    for member in MEMBERS:
        arrive(control_store, new(member))
    control_store.rounds.announce(0, fault(1))
    assert control_store.store.store.num_keys() == 4
    control_store.deletion.delete_round(0, 2)
    assert control_store.store.store.num_keys() == 0


class Forgetful(dist.HashStore):
    """A store that can delete all keys of a prefix."""

    asked = ()

    def forget(self, prefix):
        self.asked += (prefix,)
        return True


def test_a_store_that_can_forget_forgets_a_round_at_once():
    store = Forgetful()
    ControlStore(GuardedStore(store), KEYS).deletion.delete_round(3, 2)
    assert store.asked == ("nvrx/job/0/0/3/",)


def test_a_store_that_fails_to_forget_is_asked_key_by_key():
    class Failing(dist.HashStore):
        def forget(self, prefix):
            raise RuntimeError

    control_store = ControlStore(GuardedStore(Failing()), KEYS)
    control_store.rounds.announce(3, fault(1))
    control_store.deletion.delete_round(3, 2)
    assert control_store.store.store.num_keys() == 0


def test_a_call_that_was_completed_late_leaves_no_key(control_store):
    for k in (-1, 0, 5, 6, 7):
        for member in MEMBERS:
            arrive(control_store, new(member, k))
    for member in MEMBERS:
        control_store.membership.move_lease(member, "", "1")
        control_store.membership.mark_left(member)
    control_store.deletion.delete_round(0, 2)
    for _ in MEMBERS:
        control_store.deletion.count_out(7, 2, 2)
    assert control_store.store.store.num_keys() == 0


def test_a_store_that_cannot_delete_keeps_its_keys(tmp_path):
    class Keeping(dist.HashStore):
        def delete_key(self, key):
            raise NotImplementedError

    control_store = ControlStore(GuardedStore(Keeping()), KEYS)
    control_store.rounds.announce(0, fault(1))
    control_store.deletion.delete_round(0, 2)
    assert event(control_store) == fault(1)


def test_more_arrivals_than_are_asked_for_at_once(control_store):
    members = frozenset(range(2 * BATCH + 1))
    for member in members:
        machine = Round(0, member, members, RoundTimeouts(60.0, 60.0))
        carry_out(control_store, machine, machine.arrive(arrival(member, ArrivalStatus.ALIVE), now=1.0))
    assert control_store.rounds.await_decision(0).lost == ()


def test_a_decision_of_another_round_is_a_failure_of_the_store(control_store):
    control_store.store.store.set(KEYS.round(0).decision, decide(3, {0: arrival(0)}, None).encode())
    with pytest.raises(StoreFailure, match="of round 3"):
        control_store.rounds.await_decision(0)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "ho st:1", "h\u00f6st:1", "host:²"]
)
def test_a_malformed_rendezvous_is_a_failure_of_the_store(control_store, text):
    control_store.store.store.set(KEYS.round(0).master, text)
    with pytest.raises(StoreFailure):
        control_store.rounds.await_rendezvous(0)


def test_a_malformed_lease_is_overwritten(control_store):
    control_store.store.store.set(KEYS.lease(1), b"\xff\xfe")
    assert control_store.membership.leases([1]) == {1: "\ufffd\ufffd"}
    assert control_store.membership.move_lease(1, "", "1/0") == "1/0"
    assert control_store.membership.leases([1]) == {1: "1/0"}


def moving(collectives, iteration=0):
    return f"5/0/1/{Stage.RUNNING:d}/{iteration}/0/{collectives}/0/0"


MAX_RANKS = frozenset(range(BATCH + 1))


@pytest.fixture
def crowded(control_store):
    for member in MAX_RANKS - {3}:
        control_store.membership.move_lease(member, "", moving(10 + member))
    return control_store


def test_who_is_in_an_atomic_section_of_the_round_is_known(control_store):
    control_store.membership.move_lease(0, "", moving(1, iteration=2).removesuffix("0/0") + "1/0")
    control_store.membership.move_lease(1, "", moving(1, iteration=2))
    assert control_store.survey.holders(2, MEMBERS, 1) == {0: 5}
    assert control_store.survey.holders(1, MEMBERS, 1) == {}


def test_a_survey_of_many_reads_every_lease(crowded):
    assert len(crowded.membership.leases(MAX_RANKS)) == BATCH
    assert crowded.survey.slowest(MAX_RANKS, asking=7) == PeerProgress({0: MinimumProgress(0, 10, (0,))})


def test_surveys_are_made_one_after_the_other_and_keep_no_keys(crowded):
    for beat in range(5):
        crowded.store.store.set(KEYS.lease(0), moving(beat))
        assert crowded.survey.slowest(MAX_RANKS, asking=beat) == PeerProgress({0: MinimumProgress(0, beat, (0,))})
    assert crowded.store.store.num_keys() == BATCH + 3


def test_one_that_asks_while_a_survey_is_made_takes_its_answer(crowded):
    crowded.store.store.set(KEYS.survey(), "4/9")

    class Ending:
        def __getattr__(self, name):
            return getattr(crowded.store.store, name)

        def wait(self, keys, timeout):
            self.set(KEYS.survey(4), PeerProgress({0: MinimumProgress(1, 2, (5,))}).encode())
            crowded.store.store.wait(keys, timeout)

    assert ControlStore(GuardedStore(Ending()), KEYS).survey.slowest(MAX_RANKS, asking=7) == PeerProgress(
        {0: MinimumProgress(1, 2, (5,))}
    )


def test_a_survey_that_is_not_completed_is_repeated_by_another(crowded, monkeypatch):
    monkeypatch.setattr("nvrx_core.inprocess.coordination.membership.ENDS_WITHIN", SOON)
    crowded.store.store.set(KEYS.survey(), "4/9")
    assert crowded.survey.slowest(MAX_RANKS, asking=7) == PeerProgress({0: MinimumProgress(0, 10, (0,))})
    assert crowded.store.store.get(KEYS.survey()) == b"5/7"


def test_surveys_that_are_never_completed_are_a_failure_of_the_store(crowded, monkeypatch):
    class Racing(dist.PrefixStore):
        def compare_set(self, key, expected, desired):
            return b"5/9"

    monkeypatch.setattr("nvrx_core.inprocess.coordination.membership.ENDS_WITHIN", SOON)
    with pytest.raises(StoreFailure, match="nobody ends"):
        ControlStore(GuardedStore(Racing("", crowded.store.store)), KEYS).survey.slowest(MAX_RANKS, asking=7)


@pytest.mark.parametrize("kind", ["hash", "tcp", "file"])
def test_a_key_that_is_not_there_is_read_as_nothing_and_not_made(kind, tmp_path):
    stores = {
        "hash": dist.HashStore,
        "tcp": lambda: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
    }
    control_store = ControlStore(GuardedStore(stores[kind]()), KEYS)
    assert control_store.membership.leases([0]) == {}
    assert control_store.rounds.read_decision(0) is None
    assert not control_store.store.store.check([KEYS.lease(0)])
    control_store.membership.move_lease(0, "", "1")
    assert control_store.membership.leases([0]) == {0: "1"}


def test_the_last_to_leave_a_completed_call_deletes_its_keys(control_store):
    keys = KEYS.of(1)
    control_store = ControlStore(control_store.store, keys)
    control_store.store.put_once(keys.verdict(0), "moved")
    control_store.store.put_once(keys.verdict(1), "met")
    for member in MEMBERS:
        control_store.store.put_once(keys.claim(member), f"process {member}")
        control_store.store.count(keys.claims())
        arrive(control_store, new(member, -1))
        control_store.membership.mark_left(member)
    assert control_store.store.has([keys.claim(member) for member in MEMBERS])
    control_store.deletion.count_out(0, 2, 2)
    assert control_store.store.try_get(keys.verdict(1)) == b"met"
    control_store.deletion.count_out(0, 2, 2)
    assert control_store.store.try_get(keys.verdict(1)) is None
    assert control_store.store.try_get(keys.verdict(0)) == b"moved"
    assert control_store.store.store.num_keys() == 1


def test_keys_that_a_member_has_yet_to_read_are_deleted_when_it_has_left(control_store):
    """Member 0 leaves in round 0, and is slow; member 1 completes round 1 meanwhile."""
    for member in MEMBERS:
        arrive(control_store, new(member))
    control_store.deletion.delete_if_over(2)
    control_store.membership.mark_left(1)
    control_store.deletion.count_out(1, 1, 2)
    assert control_store.rounds.read_decision(0) is not None
    control_store.membership.mark_left(0)
    control_store.deletion.delete_if_over(2)
    assert control_store.store.store.num_keys() == 0


def test_the_arrivals_lie_in_the_generation_that_the_ranks_agree_on(control_store):
    control_store = ControlStore(control_store.store, KEYS.of(1))
    arrive(control_store, new(0, -1))
    assert [control_store.store.has([keys.round(-1).arrival(0)]) for keys in (KEYS, KEYS.of(1))] == [False, True]


@pytest.mark.parametrize("kind", [dist.HashStore, WithoutList], ids=["lists its keys", "lists none"])
def test_the_user_s_keys_of_a_round_are_deleted_where_the_store_lists_its_keys(kind):
    control_store = ControlStore(GuardedStore(kind()), KEYS)
    asked = RoundPrefixStore(f"{KEYS.round(0).user}/assignment", control_store.store.store, KEYS.round(0).user)
    asked.set("fact", "1")
    asked.add("number", 1)
    control_store.store.store.set(f"{KEYS.round(1).user}/kept", "")
    control_store.deletion.delete_round(0, 2)
    assert control_store.store.store.num_keys() == (1 if kind is dist.HashStore else 3)
    assert control_store.store.store.check([f"{KEYS.round(1).user}/kept"])


def test_the_keys_of_the_store_are_listed_only_if_the_user_has_some():
    class Listing(dist.HashStore):
        def list_keys(self):
            raise AssertionError

    control_store = ControlStore(GuardedStore(Listing()), KEYS)
    control_store.rounds.announce(0, fault(1))
    control_store.deletion.delete_round(0, 2)
    assert control_store.store.store.num_keys() == 0


@pytest.mark.parametrize("write", [
    lambda store: store.set("a", "1"), lambda store: store.add("a", 1), lambda store: store.compare_set("a", "", "1"),
    lambda store: store.append("a", "1"), lambda store: store.multi_set(["a"], ["1"]),
])  # fmt: skip
def test_whatever_a_rank_assignment_writes_marks_the_round_once(write):
    store = dist.HashStore()
    asked = RoundPrefixStore("user/assignment", store, "user")
    assert not asked.check(["a"])
    assert store.num_keys() == 0
    write(asked)
    assert store.check(["user", "user/assignment/a"])
    store.delete_key("user")
    write(asked)
    assert store.num_keys() == 1


def test_a_store_that_can_forget_is_asked_to():
    store = Forgetful()
    control_store = ControlStore(GuardedStore(store), KEYS)
    for member in MEMBERS:
        control_store.membership.mark_left(member)
    control_store.deletion.count_out(0, 1, 2)
    assert store.asked == ("nvrx/job/0/0/",)


def test_a_wait_goes_on_when_another_one_only_looks_at_the_key():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    looking, found = ControlStore(GuardedStore(server), KEYS), []
    thread = threading.Thread(
        target=lambda: found.append(ControlStore(GuardedStore(client), KEYS).rounds.await_decision(0))
    )
    thread.start()
    decision = decide(0, {0: arrival(0)}, None)
    for _ in range(20):
        assert looking.rounds.read_decision(0) is None
        thread.join(0.01)
    server.set(KEYS.round(0).decision, decision.encode())
    thread.join(5.0)
    assert found == [decision]


def test_asking_whether_there_is_a_decision_ends_no_wait_for_it():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    waiting = GuardedStore(server.clone())
    woken = threading.Event()
    thread = threading.Thread(target=lambda: (waiting.wait_signal(KEYS.round(0).decision), woken.set()))
    thread.start()
    looking = ControlStore(GuardedStore(server), KEYS).rounds
    for _ in range(10):
        assert not looking.has_decision(0)
        assert not woken.wait(0.005)
    server.set(KEYS.round(0).decision, decide(0, {0: arrival(0)}, None).encode())
    assert looking.has_decision(0)
    thread.join(5.0)
    assert woken.is_set()


def test_a_read_of_a_missing_event_ends_no_wait_for_it():
    """A rank in its function takes the end of its wait for a fault, so no wait may end without one."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    waiting = ControlStore(GuardedStore(server.clone()), KEYS)
    heard = threading.Event()
    thread = threading.Thread(target=lambda: (waiting.rounds.await_event(0), heard.set()))
    thread.start()
    looking = ControlStore(GuardedStore(server), KEYS)
    for member in MEMBERS:
        for _ in range(5):
            arrive(looking, new(member))
            assert not heard.wait(0.005)
    assert looking.rounds.read_decision(0) is not None
    looking.rounds.announce(0, fault(1))
    thread.join(5.0)
    assert heard.is_set()


def test_arrivals_that_cannot_be_read_are_a_failure_of_the_store(control_store):
    carry_out(control_store, new(0), new(0).arrive(arrival(0), now=1.0))
    control_store.store.store.set(KEYS.round(0).arrivals(0), "garbage")
    with pytest.raises(StoreFailure, match="no arrival"):
        arrive(control_store, new(1))
