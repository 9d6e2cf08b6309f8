"""What is read from the store has the type and the range it must have."""

import pytest

from nvrx_core import parsing as wire
from nvrx_core.inprocess.protocol.decision import RoundDecision


def test_what_is_well_formed_is_read():
    assert wire.parse_object('{"a": [1]}') == {"a": [1]}
    assert wire.integers([1, 2], 0, 2) == (1, 2)
    assert wire.number(1.5) == 1.5
    assert wire.string("a") == "a"
    assert wire.address(b"fe80::1:29500") == ("fe80::1", 29500)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (wire.parse_json, "["),
        (wire.parse_json, "[" * 100_000),
        (wire.parse_json, b"\xff"),
        (wire.parse_json, " " * (wire.MAX_BYTES + 1)),
        (wire.parse_object, "[]"),
        (wire.integer, True),
        (wire.integer, 1.0),
        (wire.integer, 1 << 64),
        (wire.integers, "12"),
        (wire.integers, [0] * (wire.MAX_RANKS + 1)),
        (wire.number, float("nan")),
        (wire.number, float("inf")),
        (wire.number, 10**400),
        (wire.number, "1"),
        (wire.string, 1),
        (wire.address, b"host"),
        (wire.address, b"host:70000"),
        (wire.address, "höst:1".encode()),
    ],
)
def test_what_is_not_is_an_error(read, value):
    with pytest.raises(ValueError, match=r"not |decode"):
        read(value)


@pytest.mark.parametrize("keys", ["1", "[1]", '[[[1048576, "a"], [1, "b"]]]', '[[[0, "a"]]]'])
def test_keys_of_a_decision_cost_no_more_than_ranks(keys):
    text = f'{{"iteration": 0, "lost": [], "terminated": [], "culprits": [], "step": 0, "keys": {keys}}}'
    with pytest.raises(ValueError, match=r"not|too many"):
        RoundDecision.decode(text)


@pytest.mark.parametrize(
    ("text", "default", "endpoint"),
    [
        ("node0:29500", None, ("node0", 29500)),
        ("node0", 29500, ("node0", 29500)),
        ("10.0.0.1:1", 29500, ("10.0.0.1", 1)),
        ("[::1]:29500", None, ("::1", 29500)),
        ("[::1]", 29500, ("::1", 29500)),
        ("[fe80::1%eth0]:65535", None, ("fe80::1%eth0", 65535)),
        ("fd00::2:29500", None, ("fd00::2", 29500)),
    ],
)
def test_an_endpoint_is_read_as_it_is_written(text, default, endpoint):
    assert wire.parse_endpoint(text, default) == endpoint
    assert wire.parse_endpoint(wire.endpoint_text(*endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "", ":1", "node0", "node0:", "node0:0", "node0:65536", "node0:1000000", "node0:-1", "node0:x", "node0:\u0661",
        "http://node0:1", "no de:1", "[node0]:1", "[::1]1", "[::1", "[::1]:", "::1]:1", "a:b:1", "h" * 256 + ":1",
    ],
)  # fmt: skip
def test_what_is_no_endpoint_is_an_error(text):
    with pytest.raises(ValueError, match=r"not host:port|not an integer from 1 to 65535"):
        wire.parse_endpoint(text)


@pytest.mark.parametrize("text", ["::1", "fd00::2:2379", "fe80::1"])
def test_an_address_whose_port_is_uncertain_is_an_error(text):
    with pytest.raises(ValueError, match="put the address in brackets"):
        wire.parse_endpoint(text, 29500)


def test_an_endpoint_with_an_open_end_has_no_default_port():
    with pytest.raises(ValueError, match="not host:port"):
        wire.parse_endpoint("node0:", 29500)


def test_neighbours_are_one_range():
    texts = {(): "", (4,): "4", (1, 2, 3, 7, 8): "1-3, 7-8"}
    for ranks, text in texts.items():
        assert wire.ranges(ranks) == text
        assert wire.parse_ranges(text) == set(ranks)


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "0-1048576", "1,2", 5])
def test_what_is_no_range_of_ranks_is_an_error(text):
    with pytest.raises(ValueError, match="not a"):
        wire.parse_ranges(text)
