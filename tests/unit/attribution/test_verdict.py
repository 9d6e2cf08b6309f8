"""What of a log may be shown: no control characters, no secrets, not too much."""

from __future__ import annotations

import pytest

from nvrx_core.attribution.verdict import Action, Evidence, Verdict, shown, without_escapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x9b2Jafter", "after"),
        ("a\x07b\x00c\x85d", "a?b?c?d"),
        ("a\u202eb\u2066c", "a?b?c"),
        ("tab\there", "tab here"),
        ("größer 🏖", "größer 🏖"),
    ],
)
def test_no_control_character_is_shown(text: str, expected: str) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter22secret", "--api-key hunter22secret".replace(" ", "="), '"token": "hunter22secret"',
        "Authorization: Bearer hunter22secret", "bearer hunter22secret", "https://me:hunter22secret@host/x",
        "hf_hunter22secrethunter22secret", "sk-hunter22secrethunter", "AKIAIOSFODNN7EXAMPLE",
        "ghp_hunter22secrethunter22secret", "nvapi-hunter22secrethunter",
        "-----BEGIN RSA PRIVATE KEY----- hunter22secret",
        "wandb: 0123456789abcdef0123456789abcdef01234567", "AWS_SECRET_ACCESS_KEY=hunter22secret",
    ],
)  # fmt: skip
def test_no_secret_is_shown(text: str) -> None:
    found = shown(f"error: {text} failed")
    assert "[redacted]" in found
    assert not {"hunter22", "IOSFODNN7", "0123456789abcdef"} & {
        each for each in ("hunter22", "IOSFODNN7", "0123456789abcdef") if each in found
    }


def test_what_is_long_is_cut() -> None:
    assert shown("x" * 100_000) == "x" * 297 + "..."


def test_a_text_without_escapes_is_left_alone() -> None:
    assert without_escapes("[0m") == "[0m"


def test_the_json_object_has_the_documented_keys() -> None:
    verdict = Verdict("hang", None, 1, "n1", Action.RESTART, None, 0.5, (Evidence("f", 3, "text"),), "rank 1 hung")
    assert verdict.as_json() == {
        "class": "hang", "error_type": None, "rank": 1, "host": "n1", "node_to_exclude": None, "action": "restart",
        "confidence": 0.5, "evidence": [{"file": "f", "line": 3, "text": "text"}], "sentence": "rank 1 hung",
    }  # fmt: skip
