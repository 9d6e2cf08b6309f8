"""The keys of a job in the rendezvous store: none of one job is one of another's, and none is two things."""

from nvrx_launcher.rendezvous.keys import RendezvousKeys, job_prefix


def keys_of(run_id):
    keys = RendezvousKeys(run_id)
    numbered = (keys.message, keys.decision, keys.lease, keys.in_use, keys.progress, keys.pace, keys.evidence)
    return {
        keys.nodes, keys.inbox, keys.leader, keys.in_uses, keys.last_hang,
        keys.evidence_count("1"), keys.state(1, 2), keys.state(2, 1),
        *(key(number) for key in numbered for number in range(1, 3)),
    }  # fmt: skip


def test_keys_are_apart():
    assert len(keys_of("a")) == 22
    assert not keys_of("a") & keys_of("b")
    assert all(key.startswith("nvrx-rendezvous/a/") for key in keys_of("a"))


def test_no_key_of_a_job_begins_like_those_of_another_one():
    names = ["a", "a/b", "a%2Fb", "a/nodes"]
    prefixes = [job_prefix(name) for name in names]
    assert len(set(prefixes)) == len(names)
    for one in prefixes:
        assert [each for each in prefixes if each.startswith(one)] == [one]
