"""The progress page: what a rank writes, its monitor process reads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvrx_core.progress.fields import MAX_SECTIONS, NAME_BYTES, WORDS
from nvrx_core.progress.page import Page, PageError, ProgressField, SectionField, Stage


@pytest.fixture
def page():
    made = Page(10)
    yield made
    made.close()


def test_a_new_page_has_a_version_and_a_size_and_nothing_else(page):
    assert (page[ProgressField.VERSION], page[ProgressField.INITIAL_WORLD_SIZE]) == (Page.VERSION, 10)
    assert sum(map(bool, page.words)) == 2
    assert page[ProgressField.STAGE] == Stage.OUTSIDE


def test_words_do_not_overlap(page):
    for word in range(WORDS):
        page.words[word] = -(2**62) + word
    assert [page[field] for field in ProgressField] == [-(2**62) + field for field in ProgressField]
    assert page.members() == frozenset(range(10))


def test_the_fields_are_listed_in_the_order_of_their_numbers():
    assert list(ProgressField) == sorted(ProgressField)
    assert list(SectionField) == sorted(SectionField)


def test_a_new_stage_is_a_sign_of_life(page):
    page.enter(Stage.RUNNING)
    assert page[ProgressField.STAGE] == Stage.RUNNING
    assert page[ProgressField.AUTO_HEARTBEAT] > 0


def test_manual_heartbeats_start_anew_with_each_iteration(page):
    for word in (
        ProgressField.PING,
        ProgressField.STEP,
        ProgressField.STEP_AT,
        ProgressField.RENDEZVOUS_COUNT,
        ProgressField.COLLECTIVES,
        ProgressField.RENDEZVOUS_DEPTH,
        ProgressField.PING_SUSPENDED,
    ):
        page[word] = 7
    page.begin_round(3, 1, 4)
    assert [
        page[w]
        for w in (
            ProgressField.PING,
            ProgressField.STEP_AT,
            ProgressField.RENDEZVOUS_COUNT,
            ProgressField.COLLECTIVES,
            ProgressField.RENDEZVOUS_DEPTH,
            ProgressField.PING_SUSPENDED,
        )
    ] == [0] * 6
    assert (page[ProgressField.ITERATION], page[ProgressField.RANK], page[ProgressField.WORLD_SIZE]) == (3, 1, 4)


def test_the_oldest_sign_of_life_in_use_counts(page):
    page[ProgressField.AUTO_HEARTBEAT] = 9 * 10**9
    page[ProgressField.STAGE] = Stage.RUNNING
    assert page.alive_at() == 9.0
    page[ProgressField.PING] = 7 * 10**9
    page[ProgressField.STEP_AT] = 8 * 10**9
    assert page.alive_at() == 7.0
    page[ProgressField.PING_SUSPENDED] = 1
    assert page.alive_at() == 9.0
    page[ProgressField.PING_SUSPENDED] = 0
    page[ProgressField.STAGE] = Stage.UNWINDING
    assert page.alive_at() == 9.0


def test_who_is_lost_stays_lost(page):
    page.lose([0, 9])
    page.lose([9, 3])
    assert page.members() == frozenset({1, 2, 4, 5, 6, 7, 8})
    assert sum(map(bool, page.words)) == 2


@pytest.mark.parametrize("size", [1, 8, 9, 64])
def test_there_is_a_bit_for_every_member(size):
    page = Page(size)
    page.lose(range(size))
    assert page.members() == frozenset()
    page.close()


def test_a_disowned_page_goes_on_from_what_it_said(page):
    page[ProgressField.ITERATION], page[ProgressField.MONITOR_PID] = 3, 17
    page.lose([2])
    page.disown()
    assert (page[ProgressField.ITERATION], page[ProgressField.MONITOR_PID], page.members()) == (
        3,
        17,
        frozenset(range(10)) - {2},
    )
    page[ProgressField.ITERATION] = 4
    assert page[ProgressField.ITERATION] == 4


def test_a_page_that_is_forked_only_has_no_file(page):
    with pytest.raises(ValueError, match=r"Page\.create"):
        page.fileno()


@pytest.fixture
def shared() -> Iterator[Page]:
    made = Page.create(10)
    yield made
    made.close()


@contextmanager
def attached(fd: int) -> Iterator[Page]:
    page = Page.attach(fd)
    try:
        yield page
    finally:
        page.close()


def test_what_one_side_writes_the_other_reads(shared):
    with attached(shared.fileno()) as other:
        shared[ProgressField.ITERATION] = 3
        other[ProgressField.MONITOR_PID] = 17
        shared.lose([9])
        assert (other[ProgressField.ITERATION], shared[ProgressField.MONITOR_PID]) == (3, 17)
        assert other.members() == frozenset(range(9))


def test_an_attached_page_outlives_the_one_that_was_created():
    page = Page.create(4)
    page[ProgressField.ITERATION] = 3
    with attached(page.fileno()) as other:
        page.close()
        with attached(other.fileno()) as third:
            assert (third.world_size, third[ProgressField.ITERATION]) == (4, 3)


def test_a_page_can_be_neither_cut_short_nor_grown(shared):
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(shared.fileno(), size)


def test_a_disowned_page_has_no_file(shared):
    with attached(shared.fileno()) as other:
        shared.disown()
        shared[ProgressField.ITERATION] = 5
        assert other[ProgressField.ITERATION] == 0
    with pytest.raises(ValueError, match=r"Page\.create"):
        shared.fileno()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a progress page: a file of 0 bytes"),
        (b"nvrx", "not a progress page: a file of 4 bytes"),
        (b"\x7fELF".ljust(20_000, b"\0"), r"not a progress page: it begins with b'\\x7fELF"),
        (bytes(20_000), "not a progress page: it begins with"),
        ((Page.VERSION + 1).to_bytes(8, "little").ljust(20_000, b"\0"), "of version 6; this nvrx reads version 5"),
        (Page.VERSION.to_bytes(8, "little").ljust(20_000, b"\0"), "too short for a job of 0 ranks"),
        (Page.VERSION.to_bytes(8, "little") + (9).to_bytes(8, "little"), "16 bytes is too short for a job of 9 ranks"),
        (
            (Page.VERSION.to_bytes(8, "little") + (9).to_bytes(8, "little")).ljust(WORDS * 8 + 1, b"\0"),
            f"{WORDS * 8 + 1} bytes is too short for a job of 9 ranks",
        ),
    ],
)
def test_another_file_is_refused(tmp_path, content, message):
    path = tmp_path / "page"
    path.write_bytes(content)
    with open(path, "r+b") as file, pytest.raises(PageError, match=message):
        Page.attach(file.fileno())


def test_a_section_is_found_by_its_name(shared):
    step, checkpoint = shared.declare_section("step"), shared.declare_section("checkpoint")
    assert shared.declare_section("step") == step
    shared.words[step + SectionField.OPENED_AT] = 7
    shared.words[checkpoint + SectionField.LONGEST] = 9
    with attached(shared.fileno()) as other:
        assert other.sections() == {"step": step, "checkpoint": checkpoint}
        assert [other.words[slot + SectionField.OPENED_AT] for slot in (step, checkpoint)] == [7, 0]
        assert [other.words[slot + SectionField.LONGEST] for slot in (step, checkpoint)] == [0, 9]


def test_there_is_room_for_all_sections_with_the_longest_names(page):
    names = [f"{number:0{NAME_BYTES}}" for number in range(MAX_SECTIONS)]
    slots = [page.declare_section(name) for name in names]
    for slot in slots:
        for field in (SectionField.OPENED_AT, SectionField.LONGEST, SectionField.TIMEOUT):
            page.words[slot + field] = -1
    assert list(page.sections().items()) == list(zip(names, slots, strict=True))
    assert page.members() == frozenset(range(10))
    with pytest.raises(ValueError, match=f"no room for section 'one more': a rank has at most {MAX_SECTIONS}"):
        page.declare_section("one more")


@pytest.mark.parametrize("name", ["", "a\0b", "x" * (NAME_BYTES + 1), "\u00e9" * (NAME_BYTES // 2 + 1)])
def test_a_name_that_does_not_fit_is_refused(page, name):
    with pytest.raises(ValueError, match=f"1 to {NAME_BYTES} bytes"):
        page.declare_section(name)
    assert page.sections() == {}
