"""Whatever stands in a key of the store, or in a word of the progress page: a clean error or a valid object, at once.

A frame is a valid value, damaged: bits flipped, cut, spliced with another, its JSON values replaced. The seed of a run
is printed when it fails.
"""

import json
import random
import time

import pytest

from nvrx_core import parsing as wire
from nvrx_core.fault.blame import RankProgress
from nvrx_core.fault.record import FaultRecord
from nvrx_core.fault.stragglers import NodePaces, Pace, SectionPaces, StragglerDetector
from nvrx_core.inprocess.protocol.decision import (
    Arrival,
    ArrivalStatus,
    RoundDecision,
    decide,
    decode_arrivals,
    decode_event,
    encode_completion,
)
from nvrx_core.liveness.hang_detector import CallRules, HangDetector
from nvrx_core.liveness.lease import LeaseTable
from nvrx_core.liveness.peer_progress import AllWaiting, MinimumProgress, PeerProgress
from nvrx_core.progress.page import Page, ProgressField, Stage
from nvrx_core.progress.sampling import take_sample

SLOWEST = 1.0
"""Seconds of the processor: what decodes does not wait."""
FAULT = FaultRecord(initial_rank=1, rank=1, interruption="EXCEPTION", message="injected", occurred=1.5, host="h", pid=7)
ARRIVAL = Arrival(
    initial_rank=1,
    rank=1,
    status=ArrivalStatus.ALIVE,
    world_size=3,
    fault=FAULT,
    keys=("a",),
    progress=RankProgress(1, 1, 2, 3, ((17, 4),)),
)
DECISION = decide(4, {1: ARRIVAL}, FAULT)
STRANGE = [
    None, True, -1, 0, 1 << 20, 1 << 63, 10**400, 1.5, float("nan"), float("inf"), "", "x", "9" * 5000, "\ud800", [],
    {}, [[]], [-1], [1 << 40], {"a": 1}, [[1 << 20, "k"], [1 << 20, "k"]],
]  # fmt: skip


def arrivals_decided(text):
    """As the last to arrive does: read all, decide, tell."""
    arrivals = {arrival.initial_rank: arrival for arrival in decode_arrivals([text, ARRIVAL.encode().encode()])}
    return RoundDecision.decode(decide(0, arrivals, None).encode())


def leases_judged(text):
    table, lease = LeaseTable(1.0), text.decode(errors="replace")
    table.observe(1, lease, now=0.0)
    PeerProgress.of({3: lease}).behind(0, 1, 1)
    return table.stale(now=0.5)


def paces_judged(text):
    detector = StragglerDetector(2.0, 20)
    detector.begin_cycle(0, 4)
    return [each.sentence for _ in range(2) for each in detector.evaluate([NodePaces.decode(text), PACES])]


PACES = NodePaces(0, "h", {"data": SectionPaces.of([Pace(rank, 20, 0.01, 0.1) for rank in range(4)])})
DECODERS = {
    "event": (decode_event, [FAULT.encode(), encode_completion()]),
    "arrival": (Arrival.decode, [ARRIVAL.encode()]),
    "arrivals": (arrivals_decided, [ARRIVAL.encode()]),
    "decision": (RoundDecision.decode, [DECISION.encode()]),
    "master": (wire.address, ["host.example:29500"]),
    "paces": (paces_judged, [PACES.encode()]),
    "lease": (leases_judged, ["7/0/123/2/1/4/5/0/3"]),
    "survey": (
        PeerProgress.decode,
        [PeerProgress({1: MinimumProgress(2, 3, (4, 5))}, all_waiting=AllWaiting(1, 2, (4,))).encode()],
    ),
}


def damaged(rng, valid):
    """One of the ways in which a value can be wrong."""
    raw = bytearray(valid.encode())
    match rng.randrange(6):
        case 0:
            for _ in range(rng.randint(1, 8)):
                raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        case 1:
            del raw[rng.randrange(len(raw)) :]
        case 2:
            raw[rng.randrange(len(raw)) : rng.randrange(len(raw))] = rng.randbytes(rng.randint(0, 20))
        case 3:
            raw = bytearray(rng.randbytes(rng.randint(0, 64)))
        case 4:
            raw = bytearray(b"[" * rng.randrange(100_000)) if rng.random() < 0.01 else raw * 2
        case _:
            raw = bytearray(replaced(rng, valid).encode(errors="surrogatepass"))
    return bytes(raw)


def replaced(rng, valid):
    """The JSON with one of its values replaced, added or missing; no JSON, as it is."""
    try:
        data = json.loads(valid)
    except ValueError:
        return str(rng.choice(STRANGE))
    at = data
    while isinstance(at, dict | list) and at:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.5:
            if rng.random() < 0.2 and isinstance(at, dict):
                del at[key]
            else:
                at[key] = rng.choice(STRANGE)
            break
        at = at[key]
    return json.dumps(data)


def check_frames(frames):
    seed = random.randrange(1 << 32)
    rng, longest = random.Random(seed), 0.0
    for number in range(frames):
        name = rng.choice(list(DECODERS))
        decode, valids = DECODERS[name]
        frame = damaged(rng, rng.choice(valids))
        began = time.thread_time()
        try:
            decode(frame)
        except ValueError:
            pass
        except BaseException as error:  # boundary: any other exception is what the test looks for
            pytest.fail(f"seed {seed}, frame {number}: {name} {frame[:500]!r} gave {error!r}")
        longest = max(longest, time.thread_time() - began)
    assert longest < SLOWEST, f"seed {seed}: a frame took {longest:.2f} s"


def check_pages(pages):
    seed = random.randrange(1 << 32)
    rng, page = random.Random(seed), Page(100)
    try:
        for number in range(pages):
            for word in rng.sample(list(ProgressField), rng.randint(1, len(ProgressField))):
                page[word] = rng.choice([rng.getrandbits(63), -rng.getrandbits(63), -1, 0, 1, time.monotonic_ns()])
            try:
                judge(page)
            except ValueError:
                pass
            except BaseException as error:  # boundary: any other exception is what the test looks for
                pytest.fail(f"seed {seed}, page {number}: {list(page.words)} gave {error!r}")
    finally:
        page.close()


def judge(page):
    """What the monitor process makes of the page."""
    page.members()
    page[ProgressField.STAGE] %= len(Stage)
    watch, reading = HangDetector(CallRules(1.0, 2.0, 0.5)), take_sample(page, lambda moment: moment)
    for now in (0.0, reading.alive_at, time.monotonic()):
        watch.evaluate(reading, now=now)


def test_malformed_values_of_keys_are_clean_errors():
    check_frames(20_000)


def test_malformed_words_of_the_page_are_clean_errors():
    check_pages(2_000)


@pytest.mark.nightly
def test_a_million_malformed_values():
    check_frames(1_000_000)
    check_pages(100_000)
