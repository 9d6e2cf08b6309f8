import math

from hypothesis import given, strategies as st

from nvrx_core.logs.rank_lines import BLOCK, ENDS_AFTER, MAX_LINE, TAIL, RankLines, last_traceback

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in f\n    g()\n'


def test_each_line_has_its_rank_as_wide_as_the_largest():
    lines = RankLines(3, 1024)
    assert lines.feed(b"one\n\ntwo\r\nth", now=0.0) == b"   3: one\n   3: \n   3: two\r\n"
    assert lines.feed(b"ree\n", now=0.1) == b"   3: three\n"
    assert lines.deadline == math.inf
    assert RankLines(0, 1).feed(b"x\n", now=0.0) == b"0: x\n"


def test_an_unterminated_line_is_written_after_a_while_and_at_the_end():
    lines = RankLines(0, 10)
    assert lines.feed(b"loading", now=5.0) == b""
    assert lines.feed(b" ...", now=5.5) == b""
    assert lines.deadline == 5.0 + ENDS_AFTER
    assert lines.tick(now=5.9) == b""
    assert lines.tick(now=6.0) == b"0: loading ...\n"
    assert lines.flush() == b""
    lines.feed(b"killed", now=7.0)
    assert lines.flush() == b"0: killed\n"


def test_a_line_that_never_ends_is_cut():
    lines = RankLines(0, 10)
    assert lines.feed(b"x" * MAX_LINE, now=0.0) == b""
    assert lines.feed(b"y", now=0.0) == b"0: " + b"x" * MAX_LINE + b"y\n"


def test_zeros_and_what_is_no_utf_8_are_replaced():
    lines = RankLines(0, 10)
    assert lines.feed("a\0b \xff é\n".encode("latin-1"), now=0.0) == "0: a<NUL>b \ufffd \ufffd\n".encode()
    assert lines.feed("é".encode()[:1], now=0.0) == b""
    assert lines.feed("é\n".encode()[1:], now=0.0) == "0: é\n".encode()


def test_the_latest_output_is_kept():
    lines = RankLines(0, 10)
    lines.feed(b"first\n", now=0.0)
    lines.feed(b"second\n", now=0.0)
    assert lines.tail == b"first\nsecond\n"
    lines.feed(b"z" * TAIL + b"\n", now=0.0)
    assert lines.tail == b"z" * (TAIL - 1) + b"\n"


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_nothing_is_left_out_however_the_output_is_cut(parts):
    lines = RankLines(7, 8)
    found = b"".join(lines.feed(part, now=0.0) for part in parts) + lines.flush()
    text = b"".join(parts).replace(b"\0", b"<NUL>")
    expected = text.removesuffix(b"\n").split(b"\n") if text else []
    assert found.decode() == "".join(f"7: {line.decode(errors='replace')}\n" for line in expected)


def test_the_last_traceback_is_found_whatever_follows():
    text = f"step 1\n{TRACE}ValueError: first\nstep 2\n{TRACE}KeyError: 'x'\nterminate called\n"
    assert last_traceback(text.encode()) == f"{TRACE}KeyError: 'x'"
    assert last_traceback(b"no trace\n") == ""
    assert last_traceback(TRACE.encode()) == TRACE.rstrip()


def test_a_chain_of_exceptions_is_kept_whole():
    cause = "\nThe above exception was the direct cause of the following exception:\n\n"
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    text = f"{TRACE}OSError: a\n{cause}{TRACE}ValueError: b\n{during}{TRACE}RuntimeError: c\n"
    assert last_traceback(f"{TRACE}KeyError: handled\nnoise\n{text}".encode()) == text.rstrip()


def test_a_long_traceback_keeps_both_its_ends():
    text = "Traceback (most recent call last):\n" + "  frame\n" * 1000 + "ValueError: deep"
    found = last_traceback(text.encode()).splitlines()
    assert len(found) == BLOCK + 1
    assert (found[0], found[-1]) == ("Traceback (most recent call last):", "ValueError: deep")
    assert found[BLOCK // 2] == "... 802 lines ..."
