"""What a model gets of a log, and which of its answers count."""

from __future__ import annotations

import json

import pytest

from nvrx_core.attribution.explanation import explanation_in, numbered, request
from nvrx_core.attribution.verdict import Action, Evidence, Verdict

EVIDENCE = (Evidence("a.log", 3, "1: OddError: odd"),)
VAGUE = Verdict("user_exception", "OddError", 1, None, Action.RESTART, None, 0.6, EVIDENCE, "rank 1 raised OddError")
CLEAR = Verdict("disk_full", "OSError", 1, None, Action.STOP, None, 0.9, EVIDENCE, "rank 1 found a disk full")
LINES = {1: "1: OddError: odd", 2: "0: step 7"}
GIVEN: dict[str, object] = {"explanation": "It is odd.", "class": "nan_loss", "lines": [1]}


def body(content: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}]}).encode()


def test_the_lines_are_bounded_and_without_secrets() -> None:
    last = [f"0: step {each}" for each in range(500)] + ["", "1: OddError: odd", "api_key=abcdefgh"]
    lines = numbered(VAGUE, last)
    assert lines[1] == "1: OddError: odd"
    assert len(lines) <= 100
    assert list(lines) == list(range(1, len(lines) + 1))
    assert len(set(lines.values())) == len(lines), "each text once"
    assert "abcdefgh" not in str(lines)


BEGIN = "-----BEGIN RSA PRIVATE KEY-----"
END = "-----END RSA PRIVATE KEY-----"
BODY = ["Proc-Type: 4,ENCRYPTED", "MIIEpAIBAAKCAQEA0Z3VS5JJ", "[rank1]: cds3xfnyGwyF8PbnGy0+/B7MhgwMbRvI0==", "bRvI"]


@pytest.mark.parametrize(
    "key",
    [
        [BEGIN, *BODY, END], [f"0: {BEGIN}", *BODY, "a line of another rank", f"0: {END}"], [BEGIN, *BODY],
        [*BODY, END], [BEGIN + BODY[1] + END], [BEGIN, *BODY, END, BEGIN, *BODY, END],
    ],
)  # fmt: skip
def test_no_line_of_a_private_key_is_among_them(key: list[str]) -> None:
    last = ["0: step 7.", *key, "1: OddError: it was odd.", "Traceback (most recent call last):"]
    found = list(numbered(CLEAR, last).values())
    assert not [each for each in found if any(part in each for part in ("Proc", "MIIE", "cds3", "bRvI"))]
    assert found == ["1: OddError: odd", "0: step 7.", "1: OddError: it was odd.", "Traceback (most recent call last):"]


def test_a_key_may_be_all_that_there_is() -> None:
    assert list(numbered(CLEAR, [BEGIN, *BODY]).values()) == ["1: OddError: odd"]
    assert list(numbered(CLEAR, [*BODY, END]).values()) == ["1: OddError: odd"]


def test_a_request_has_the_verdict_and_the_lines_as_data() -> None:
    asked = request("small", VAGUE, LINES)
    messages = asked["messages"]
    assert isinstance(messages, list)
    assert [each["role"] for each in messages] == ["system", "user"]
    content = json.loads(messages[1]["content"])
    assert content["lines"] == {"1": "1: OddError: odd", "2": "0: step 7"}
    assert content["verdict"]["class"] == "user_exception"
    assert "evidence" not in content["verdict"]
    assert "nan_loss" in content["classes"]


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Here it is: {} Anything else?"])
def test_an_answer_counts_that_rests_on_lines(around: str) -> None:
    found = explanation_in(body(around.replace("{}", json.dumps(GIVEN))), "small", VAGUE, LINES)
    assert found.as_json() == {
        "text": "It is odd.", "class": "nan_loss", "lines": ["1: OddError: odd"], "model": "small"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "said", "failure"),
    [
        (VAGUE, "nan_loss", "nan_loss"), (VAGUE, None, None), (VAGUE, "clean", None), (VAGUE, "user_exception", None),
        (CLEAR, "nan_loss", None),
    ],
)  # fmt: skip
def test_a_model_narrows_down_a_vague_class_only(verdict: Verdict, said: str | None, failure: str | None) -> None:
    assert explanation_in(body(json.dumps({**GIVEN, "class": said})), "small", verdict, LINES).failure == failure


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"{}", b'{"choices": []}', b'{"choices": [{"message": {"content": 7}}]}', body(""), body("no object"),
        body("{"), body('{"explanation": "x"}'), body(json.dumps({**GIVEN, "explanation": " "})),
        body(json.dumps({**GIVEN, "explanation": ["x"]})), body(json.dumps({**GIVEN, "class": "doom"})),
        body(json.dumps({**GIVEN, "class": ["nan_loss"]})), body(json.dumps({**GIVEN, "lines": [7, True, "1"]})),
        body(json.dumps({**GIVEN, "lines": 1})),
    ],
)  # fmt: skip
def test_any_other_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"answer|JSON"):
        explanation_in(answer, "small", VAGUE, LINES)
