"""`--rdzv-conf`: each key that torch or its peers have works, or is refused with what to write."""

from __future__ import annotations

import pytest
from nvrx_launcher.rendezvous_settings import RendezvousSettings

from nvrx_core.errors import ConfigurationError


def test_every_key_has_its_effect():
    found = RendezvousSettings.of(
        "join_timeout=7, last_call_timeout=2,close_timeout=3,read_timeout=4,store_connect_wait_seconds=5,"
        "keep_alive_interval=0.5,keep_alive_max_attempt=3,is_host=False,same_command=no,store_type=tcp,use_libuv=1",
        "c10d",
    )
    assert (found.join_timeout, found.last_call_timeout, found.close_timeout) == (7.0, 2.0, 3.0)
    assert (
        found.read_timeout,
        found.store_connect_wait_seconds,
        found.keep_alive_interval,
        found.keep_alive_max_attempt,
    ) == (4.0, 5.0, 0.5, 3)
    assert (found.is_host, found.same_command) == (False, False)
    assert (found.lease_timeout, found.own_lease_timeout, found.closed_timeout) == (1.5, 1.0, 0.75)


def test_the_defaults_are_those_of_decision_and_document():
    found = RendezvousSettings.of("", "c10d")
    assert (found.join_timeout, found.store_connect_wait_seconds, found.last_call_timeout) == (600.0, 600.0, 1.0)
    assert (found.keep_alive_interval, found.keep_alive_max_attempt, found.is_host, found.same_command) == (
        1.0,
        5,
        None,
        None,
    )


def test_torchs_overall_timeout_is_that_of_joining():
    assert RendezvousSettings.of("timeout=9", "c10d").join_timeout == 9.0
    assert RendezvousSettings.of("timeout=9,join_timeout=8", "c10d").join_timeout == 8.0
    assert RendezvousSettings.of("timeout=9", "static").join_timeout == 9.0


def test_etcd_has_keys_of_its_own():
    found = RendezvousSettings.of("protocol=HTTPS,ca_cert=a,ssl_cert=b,ssl_cert_key=c", "etcd-v2")
    assert (found.protocol, found.ca_cert, found.ssl_cert, found.ssl_cert_key) == ("https", "a", "b", "c")


def test_keys_of_a_backend_that_is_registered_elsewhere_are_its_own():
    assert RendezvousSettings.of("anything=1", "mine").given == {"anything": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("join_timeuot=3", "c10d has no 'join_timeuot'; did you mean join_timeout?"),
        ("qqqq=3", "c10d has no 'qqqq'; it has close_timeout, is_host, join_timeout,"),
        ("join_timeout", "'join_timeout' has no value; write <key>=<value>,<key>=<value>"),
        ("join_timeout=", "'join_timeout' has no value"),
        ("=3", "'' has no value"),
        ("join_timeout=soon", "join_timeout='soon' is no number; write a number of seconds"),
        ("join_timeout=-1", "join_timeout=-1 is out of range; write a number, 0 or more"),
        ("read_timeout=inf", "read_timeout=inf is out of range"),
        ("keep_alive_max_attempt=1", "keep_alive_max_attempt=1 is out of range; write a number, 2 or more"),
        ("is_host=maybe", "is_host='maybe' is none of 1, true,"),
        ("store_type=file", "store_type='file' is none of tcp; write tcp"),
        ("use_libuv=0", "use_libuv='0' is none of 1,"),
        ("heartbeat_timeout=3", "heartbeat_timeout has no effect here; a lease that does not move counts"),
        ("segment=4", "segment has no effect here; write --ft-segment"),
        ("protocol=http", "c10d has no 'protocol'"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write(text, message):
    with pytest.raises(ConfigurationError) as error:
        RendezvousSettings.of(text, "c10d")
    assert message in str(error.value)
    assert "--rdzv-conf" in str(error.value)


def test_a_rank_on_the_command_line_of_a_static_rendezvous_is_an_option_of_its_own():
    with pytest.raises(ConfigurationError, match="static has no 'rank'; write --node-rank"):
        RendezvousSettings.of("rank=0", "static")


def test_a_static_rendezvous_has_the_keys_and_the_timeouts_of_c10d():
    found = RendezvousSettings.of("store_type=tcp,use_libuv=1", "static")
    assert (found.join_timeout, found.store_connect_wait_seconds, found.is_host) == (600.0, 600.0, None)
    with pytest.raises(ConfigurationError, match="static has no 'is_host'"):
        RendezvousSettings.of("is_host=1", "static")
