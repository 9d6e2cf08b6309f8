import math

from nvrx_core.logs.node_buffer import BATCH, CHUNK, LINGERS, PAUSES, NodeBuffer

LINE = b"0: a line\n"


def buffer(**options) -> NodeBuffer:
    return NodeBuffer("node0", "session", **options)


def test_lines_wait_for_others_and_are_sent_in_one_chunk():
    kept = buffer()
    assert kept.deadline == math.inf
    kept.put("/a", LINE, now=0.0)
    kept.put("/a", LINE, now=0.1)
    assert kept.deadline == LINGERS
    assert kept.take(now=0.1) == ()
    (chunk,) = kept.take(now=LINGERS)
    assert (chunk.node, chunk.session, chunk.path, chunk.data, chunk.sequence) == (
        "node0", "session", "/a", 2 * LINE, 1
    )  # fmt: skip
    assert kept.deadline == math.inf
    assert kept.take(now=1.0) == ()  # it is on its way
    kept.put("/a", LINE, now=1.0)
    kept.written(now=2.0)
    assert kept.size == len(LINE)
    assert [each.sequence for each in kept.take(now=2.0 + LINGERS)] == [2]


def test_a_full_batch_does_not_wait_and_chunks_of_a_batch_are_bounded():
    kept = buffer()
    for _ in range(BATCH // CHUNK + 2):
        kept.put("/a", b"x" * CHUNK, now=0.0)
    batch = kept.take(now=0.0)
    assert [len(each.data) for each in batch] == [CHUNK] * (BATCH // CHUNK)
    kept.written(now=0.0)
    assert len(kept.take(now=LINGERS)) == 2


def test_files_have_chunks_of_their_own():
    kept = buffer()
    for path in ("/a", "/b", "/a"):
        kept.put(path, LINE, now=0.0)
    assert [each.path for each in kept.take(now=1.0)] == ["/a", "/b", "/a"]


def test_a_broken_call_is_repeated_with_the_same_numbers_after_growing_pauses():
    kept = buffer(spread=0.5)
    kept.put("/a", LINE, now=0.0)
    first, now, pauses = kept.take(now=1.0), 1.0, []
    for _ in range(8):
        kept.failed(now=now)
        pauses.append(kept.deadline - now)
        kept.put("/a", LINE, now=now)
        assert kept.take(now=now) == ()
        now = kept.deadline
        again = kept.take(now=now)
        assert again[0] == first[0]
        assert again[1].sequence == 2
    assert [round(pause, 2) for pause in pauses] == [0.1, 0.2, 0.4, 0.8, 1.6, *[PAUSES.longest] * 3]
    kept.written(now=now)
    assert kept.retries == 0


def test_the_oldest_lines_are_dropped_and_the_next_chunk_of_the_file_says_so():
    kept = buffer(limit=3 * CHUNK)
    kept.put("/a", b"on its way\n" + b"x" * (CHUNK - 11), now=0.0)
    on_its_way = kept.take(now=1.0)
    for number in range(4):
        kept.put("/a", b"%d\n" % number + b"x" * (CHUNK - 2), now=1.0)
    assert (kept.lost.bytes, kept.lost.lines) == (2 * CHUNK, 2)
    kept.failed(now=1.0)
    batch = kept.take(now=2.0)
    assert batch[0] == on_its_way[0]
    assert [each.data[:2] for each in batch[1:]] == [b"2\n", b"3\n"]
    assert [(each.lost_bytes, each.lost_lines) for each in batch] == [(0, 0), (2 * CHUNK, 2), (0, 0)]


def test_a_dropped_chunk_hands_on_what_it_would_have_said():
    kept = buffer(limit=CHUNK)
    kept.put("/a", b"1\n" + b"x" * (CHUNK - 2), now=0.0)
    kept.put("/a", b"2\n" + b"x" * (CHUNK - 2), now=0.0)
    assert kept.take(now=1.0)[0].lost_lines == 1
    kept.failed(now=1.0)
    kept.put("/a", b"3\n" + b"x" * (CHUNK - 2), now=1.0)
    (chunk,) = kept.take(now=2.0)
    assert (chunk.sequence, chunk.lost_lines, chunk.lost_bytes) == (2, 2, 2 * CHUNK)


def test_lines_that_find_no_room_beside_what_is_on_its_way_are_dropped():
    kept = buffer(limit=CHUNK)
    kept.put("/a", b"x" * CHUNK, now=0.0)
    kept.take(now=1.0)
    kept.put("/a", LINE, now=1.0)
    assert kept.lost.lines == 1
    kept.written(now=1.0)
    kept.end(now=1.0, within=5.0)
    (last,) = kept.take(now=1.0)
    assert (last.data, last.lost_lines, last.is_last) == (b"", 1, True)


def test_the_end_sends_what_is_left_at_once_and_then_that_it_was_all():
    kept = buffer()
    kept.put("/a", LINE, now=0.0)
    kept.end(now=0.0, within=5.0)
    batch = kept.take(now=0.0)
    assert [(each.data, each.is_last) for each in batch] == [(LINE, False), (b"", True)]
    assert not kept.is_over(now=0.0)
    kept.failed(now=0.0)
    assert kept.take(now=1.0) == batch
    kept.written(now=1.0)
    assert kept.is_done
    assert kept.is_over(now=1.0)


def test_an_end_while_all_is_on_its_way_still_says_that_it_was_all():
    kept = buffer()
    kept.put("/a", LINE, now=0.0)
    kept.take(now=1.0)
    kept.end(now=1.0, within=5.0)
    assert kept.deadline == 6.0
    kept.written(now=1.0)
    assert not kept.is_done
    assert [each.is_last for each in kept.take(now=1.0)] == [True]
    kept.written(now=1.0)
    assert kept.is_done


def test_an_end_of_several_files_says_what_is_missing_of_each():
    kept = buffer(limit=CHUNK)
    kept.put("/a", b"x" * CHUNK, now=0.0)
    kept.put("/b", b"x" * CHUNK, now=0.0)
    kept.end(now=0.0, within=5.0)
    assert [(each.path, each.lost_bytes, each.is_last) for each in kept.take(now=0.0)] == [
        ("/b", 0, False), ("/a", CHUNK, False), ("/b", 0, True),
    ]  # fmt: skip


def test_the_end_is_over_when_the_time_is_up():
    kept = buffer()
    kept.put("/a", LINE, now=0.0)
    kept.end(now=0.0, within=5.0)
    kept.take(now=0.0)
    assert kept.is_over(now=5.0)
    lost = kept.give_up()
    assert (lost.bytes, lost.lines, kept.size) == (len(LINE), 1, 0)


def test_a_node_without_lines_says_that_it_has_ended():
    kept = buffer()
    kept.end(now=0.0, within=5.0)
    (last,) = kept.take(now=0.0)
    assert (last.path, last.data, last.is_last) == ("", b"", True)
    kept.written(now=0.0)
    assert kept.is_done
    assert kept.take(now=0.0) == ()
