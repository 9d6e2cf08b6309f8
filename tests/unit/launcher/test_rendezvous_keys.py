"""The keys of a job in the rendezvous store: none of one job is one of another's, and none is two things."""

from nvrx_launcher.rendezvous.keys import RendezvousKeys


def keys_of(run_id):
    keys = RendezvousKeys(run_id)
    return {
        keys.nodes, keys.inbox, keys.endpoint, keys.in_use,
        *(key(number) for key in (keys.message, keys.decision, keys.lease) for number in range(1, 3)),
    }  # fmt: skip


def test_keys_are_apart():
    assert len(keys_of("a")) == 10
    assert not keys_of("a") & keys_of("b")
    assert all(key.startswith("nvrx-rendezvous/a/") for key in keys_of("a"))
