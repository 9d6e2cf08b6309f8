"""The rules by which a monitored rank is overdue, against a second implementation that replays what the rank did."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from nvrx_core.progress.limits import MIN_SAMPLE_INTERVAL, Limit, LimitKind, RankSample, SectionSample, earliest, limits


def section(name, *, opened_at=None, timeout=math.inf, count=1):
    return SectionSample(name, opened_at, timeout, count)


def overdue(sample, now):
    return {(limit.kind, limit.section) for limit in limits(sample) if limit.deadline <= now}


def test_the_initial_timeout_holds_until_the_first_sign_of_life():
    sample = RankSample(attached_at=10.0, initial_timeout=5.0, heartbeat_timeout=2.0)
    assert overdue(sample, 14.9) == set()
    assert overdue(sample, 15.0) == {(LimitKind.INITIAL, "")}


def test_heartbeats_count_from_the_last_one():
    sample = RankSample(attached_at=10.0, heartbeat_at=20.0, initial_timeout=5.0, heartbeat_timeout=2.0)
    assert earliest(sample) == Limit(LimitKind.HEARTBEAT, 20.0, 2.0)


def test_any_expired_section_counts_however_they_nest():
    sample = RankSample(
        attached_at=0.0,
        sections=(section("outer", opened_at=1.0, timeout=5.0), section("inner", opened_at=5.0, timeout=60.0)),
    )
    assert overdue(sample, 6.0) == {(LimitKind.SECTION, "outer")}


def test_a_rank_without_heartbeats_is_judged_by_its_sections():
    sample = RankSample(attached_at=0.0, section_at=7.0, heartbeat_timeout=2.0, sections=(section("data"),))
    assert overdue(sample, 9.0) == {(LimitKind.HEARTBEAT, "")}


def test_an_open_section_with_a_timeout_of_its_own_suspends_the_heartbeat_timeout():
    checkpoint = section("checkpoint", opened_at=7.0, timeout=100.0)
    sample = RankSample(attached_at=0.0, section_at=7.0, heartbeat_timeout=2.0, sections=(checkpoint,))
    assert overdue(sample, 50.0) == set()


def test_a_rank_without_signs_of_life_is_judged_by_its_bytecode():
    sample = RankSample(attached_at=0.0, automatic_at=30.0, initial_timeout=5.0, heartbeat_timeout=2.0)
    assert overdue(sample, 31.9) == set()
    assert overdue(sample, 32.0) == {(LimitKind.HEARTBEAT, "")}


def test_the_first_steps_have_the_timeout_of_the_warmup():
    def sample(count):
        step = section("step", opened_at=10.0, timeout=1.0, count=count)
        return RankSample(attached_at=0.0, warmup_steps=2, sections=(step, section("warmup", timeout=50.0)))

    assert [overdue(sample(count), 11.0) for count in (1, 2, 3)] == [set(), set(), {(LimitKind.SECTION, "step")}]


def test_without_a_warmup_section_the_first_steps_have_their_own_timeout():
    step = section("step", opened_at=10.0, timeout=1.0)
    assert overdue(RankSample(attached_at=0.0, warmup_steps=2, sections=(step,)), 11.0)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ((), False),
        ((section("step", count=0),), False),
        ((section("step", count=0), section("warmup", count=0)), True),
        ((section("step", count=1),), True),
        ((section("data", count=0),), True),
    ],
)
def test_the_time_out_of_sections_counts_from_the_first_step_on(sections, expected):
    sample = RankSample(attached_at=0.0, out_timeout=1.0, sections=sections)
    assert ((LimitKind.OUT_OF_SECTION, "") in overdue(sample, 5.0)) is expected


def test_a_reason_names_what_was_late_and_by_how_much():
    assert Limit(LimitKind.SECTION, 10.0, 1.0, "step").reason(now=12.5) == "section 'step' open for 2.5 s (timeout 1 s)"
    assert Limit(LimitKind.OUT_OF_SECTION, 10.0, 1.0).reason(now=12.5) == "no section opened for 2.5 s (timeout 1 s)"


def test_the_next_look_is_after_half_the_shortest_timeout_but_not_too_soon():
    sample = RankSample(attached_at=0.0, heartbeat_timeout=9.0, sections=(section("a", timeout=3.0),))
    assert sample.max_sample_interval == 1.5
    assert RankSample(attached_at=0.0).max_sample_interval == math.inf
    assert RankSample(attached_at=0.0, out_timeout=1e-6).max_sample_interval == MIN_SAMPLE_INTERVAL


NAMES = ("step", "warmup", "data", "save")
TIMES = st.none() | st.integers(1, 9).map(float)


@dataclass
class Replay:
    """What a rank did, second by second, and what follows from the rules in plain words."""

    timeouts: dict[str, float | None]
    initial: float | None
    subsequent: float | None
    out: float | None
    warmup_steps: int
    opened: dict[str, float] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    heartbeat_at: float | None = None
    section_at: float | None = None

    def apply(self, action: str, at: float) -> None:
        if action == "heartbeat":
            self.heartbeat_at = at
        elif action in self.opened:
            del self.opened[action]
            self.section_at = at
        else:
            self.opened[action] = at
            self.count[action] += 1
            self.section_at = at

    def sample(self) -> RankSample:
        sections = tuple(
            SectionSample(name, self.opened.get(name), _or_inf(timeout), self.count[name])
            for name, timeout in self.timeouts.items()
        )
        return RankSample(
            attached_at=0.0, heartbeat_at=self.heartbeat_at, section_at=self.section_at,
            initial_timeout=_or_inf(self.initial), heartbeat_timeout=_or_inf(self.subsequent),
            out_timeout=_or_inf(self.out), warmup_steps=self.warmup_steps, sections=sections,
        )  # fmt: skip

    def is_overdue(self, now: float) -> bool:
        """Word by word as the documentation says it."""
        if any(now - at >= self.timeout_of(name) for name, at in self.opened.items()):
            return True
        no_step_yet = not self.count["step"] and "warmup" not in self.timeouts
        if not self.opened and not no_step_yet and now - (self.section_at or 0.0) >= _or_inf(self.out):
            return True
        if self.heartbeat_at is not None:
            return now - self.heartbeat_at >= _or_inf(self.subsequent)
        if self.section_at is None:
            return now >= _or_inf(self.initial)
        guarded = any(_or_inf(self.timeouts[name]) < math.inf for name in self.opened)
        return not guarded and now - self.section_at >= _or_inf(self.subsequent)

    def timeout_of(self, name: str) -> float:
        if name == "step" and self.count["step"] <= self.warmup_steps and "warmup" in self.timeouts:
            return _or_inf(self.timeouts["warmup"])
        return _or_inf(self.timeouts[name])


def _or_inf(timeout: float | None) -> float:
    return math.inf if timeout is None else timeout


@given(
    warmup=st.booleans(),
    timeouts=st.tuples(TIMES, TIMES, TIMES, TIMES),
    rules=st.tuples(TIMES, TIMES, TIMES),
    warmup_steps=st.integers(0, 2),
    history=st.lists(st.tuples(st.sampled_from(("heartbeat", "step", "data", "save")), st.integers(0, 4)), max_size=12),
    later=st.integers(0, 10),
)
def test_the_rules_say_what_a_replay_says(warmup, timeouts, rules, warmup_steps, history, later):
    named = dict(zip(NAMES, timeouts, strict=True))
    if not warmup:
        del named["warmup"]
    replay, now = Replay(named, *rules, warmup_steps=warmup_steps), 0.0
    for action, seconds in history:
        now += seconds
        replay.apply(action, now)
        assert bool(overdue(replay.sample(), now)) == replay.is_overdue(now)
    now += later
    assert bool(overdue(replay.sample(), now)) == replay.is_overdue(now)
