"""The verdict, and what of a log may be shown. Pure.

Log text is untrusted: what reaches a verdict has no control characters, no secrets that are recognised, and a bounded
length.
"""

from __future__ import annotations

import enum
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from nvrx_core.parsing import integer, number, string

__all__ = ["Action", "Evidence", "Verdict", "shown", "without_escapes"]

MAX_SHOWN: Final = 300
"""Characters of a line of evidence."""
MAX_SENTENCE: Final = 1_000
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
_HIDDEN: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_REDACTED: Final = "[redacted]"
_NO_SECRET: Final = r"(?![_-]?(?:count|dir|file|index|len|name|path|type)(?![a-z]))"
"""After the name of a secret: what says where it is, or how many there are."""
_OF_A_TOKEN: Final = r"(?:[_-]?(?:v?\d{1,3}|value|read|write|prod|dev|test|new|old)(?![a-z]))*(?![\w-])"
_SECRET_NAME: Final = (
    r"(?:(?:pass(?:word|wd|phrase)|(?<!old)pwd(?!=/)|secret|credential(?!s?\b\W{1,4}[~./])"
    r"|(?:api|access|account|auth|client|encryption|master|private|shared|signing|ssh|storage)[ _-]?key"
    r"(?![_-]?ids?(?![a-z_]))"
    r"|x-amz-signature)" + _NO_SECRET + r"[\w.-]{0,32}"
    r"|(?<![a-z])pass(?=\s*=(?!\s*[\d.]+(?:[\s,;)]|$))|\s(?<=--pass\s))"
    r"|(?:(?:access|api|auth|hf|refresh|session)[_-]?)tokens?"
    + _OF_A_TOKEN
    + r"|(?<!\bper.)(?<!unexpected.)(?<!bos_)(?<!cls_)(?<!eos_)(?<!mask_)(?<!pad_)(?<!sep_)(?<!unk_)token"
    + _OF_A_TOKEN
    + r"(?!\\?[\"']?\]?\s*(?:=>|[=:]{1,2})\s*(?:[bru]{0,2}\\*[\"'])?+"
    r"(?:[-+]?\d{1,5}(?:[.,]\d*)?[kMGT%]?|[-+]?\d*\.\d+(?:e[-+]?\d+)?|[^\s\"'>\[]{1,2}|<\|?[a-z_/]{1,16}\|?>"
    r"|\[[\d\s,.-]*\]|\[[a-z]{1,6}\])(?:[\s,;)}\]\"']|$)))"
)
"""A name whose value is a secret: `tokenizer`, `tokens_per_sec` and `pad_token` are none, nor is every `key` or `pass`.

The value of a token that is a number, or a word of the vocabulary as `<pad>`, is none either.
"""
_SECRET_VALUE: Final = (
    r"(?(quote)|(?!(?:none|null|true|false|correct|empty|expected|expired|field|incorrect|invalid|missing|must|needed|not|required"
    r"|set|too|unset|wrong)(?:[\s,;)}\]]|$)))"
    r"(?(quote)(?:(?!(?P=quote))(?:\\.|.))+|[^\s\"',;}&][^\s\",;}&]*)"
)
"""To the closing quote, where there is one; what says that there is no value, or a wrong one, is left."""
_QUOTE: Final = r"(?:[bru]{0,2}(?P<quote>\\*[\"']))?"
_SECRETS: Final = tuple(
    re.compile(each)
    for each in (
        r"(?i)(?P<kept>(?:authorization|cookies?)(?:\\?[\"']?\s*[=:]|[\"'],)\s*(?:[bru]{0,2}\\?[\"'])?)[^\s\"'\\][^\"'\\]*",
        r"(?i)(?P<kept>" + _SECRET_NAME + r"\\?[\"']?\]?\s*(?:=>?|:=?)\s*)\[(?![\d\s,.-]*\])[^\]]+\]?",
        r"(?i)(?P<kept>"
        + _SECRET_NAME
        + r"\\?[\"']?\]?\s*(?:=>?(?!=)|:=?(?!:)|(?<=\s)(?:is|was):?\s+(?=[\"']|\S*\d|\S{8}))\s*"
        + _QUOTE
        + ")"
        r"(?:(?:bearer|basic|token)\s+)?" + _SECRET_VALUE,
        r"(?P<kept>(?:[A-Z0-9]_KEY|[?&;]sig)=)(?![\d.]{1,5}(?:\s|$))[^\s\"',;}&]+",
        r"(?i)(?P<kept>(?<![\w-])--?[\w-]{0,64}?"
        + _SECRET_NAME
        + r"[\"']?,?\s+"
        + _QUOTE
        + r")(?![\"']?-)"
        + _SECRET_VALUE,
        r"(?P<kept>(?:(?<!\S)|['\"])(?:-u|--user)(?:[ =]|['\"], ?)['\"]?[^\s:\"']{1,64}:)(?!\d)[^\s\"']+",
        r"(?P<kept>\bsshpass\s+-p\s?)\S+",
        r"(?i)(?P<kept>\bbearer\s+)(?=\S*[\d=._-])[\w.~+/=-]{8,}",
        r"(?i)(?P<kept>\bbasic\s+)(?=\S*[\d=])[a-z0-9+/]{8,}={0,2}(?![\w.=-])",
        r"(?P<kept>\b(?:https?|wss?)://)(?!git@)[^\s:/@?#\"'<>]{1,2048}(?=@)",
        r"(?P<kept>\b[a-z][a-z0-9+.-]{0,32}://)(?=[^\s:/@?#\"'<>]{0,64}\d|[^@]{16})[^\s:/@?#\"'<>]{6,2048}(?=@)",
        r"(?P<kept>\b[a-z][a-z0-9+.-]{0,32}://)[^\s:/@\[]{0,128}:(?!\d{1,5}/)[^\s\"'<>]{1,2048}(?=@)",
        (
            r"(?P<kept>)\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|nvapi-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
            r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
            r"|pypi-[\w-]{16,}|dckr_pat_[\w-]{16,}|npm_[A-Za-z0-9]{30,}|ya29\.[\w-]{20,}|[sr]k_(?:live|test)_\w{10,}"
            r"|SG\.[\w-]{10,}\.[\w-]{10,})"
        ),
        r"(?P<kept>\bhooks\.slack\.com/services/)\S+",
        r"(?i)(?P<kept>(?:wandb(?: login)?|key|token|secret)\W{1,3})[0-9a-f]{32,}\b",
        r"(?P<kept>)-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*",
    )
)
"""Forms of secrets. What `kept` matches is shown."""
_MAY_BE_KEY: Final = re.compile(
    r"(?<![\w./+-])(?=[a-z0-9+/]*[A-Z])(?=[A-Z0-9+/]*[a-z])(?=[A-Za-z+/]*\d)[A-Za-z0-9+][A-Za-z0-9+/]{39,}={0,2}(?![\w./-])"
)
_OF_WORDS: Final = re.compile(r"[a-z]{4,}|\d{6,}")
"""What paths and names have, and base64 has seldom."""


class Action(enum.Enum):
    """What to do about a failure."""

    RESTART = "restart"
    EXCLUDE_NODE = "exclude_node"
    STOP = "stop"
    NONE = "none"


@dataclass(frozen=True)
class Evidence:
    """A line that a verdict rests on.

    Attributes:
        file: its file, as it was named.
        line: its number, from 1; 0 for what is not from a file.
        text: the line, as `shown` returns it.
    """

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Verdict:
    """Who was to blame, and why.

    Attributes:
        failure: the name of the class of failure, see `rules.CLASSES`.
        error_type: the name of the Python exception, None for none.
        rank: the culprit, None where it is not known or all ranks failed alike.
        host: its host, None where it is not known.
        action: what to do.
        node_to_exclude: a host, where the action is to exclude a node and the host is known.
        confidence: from 0 to 1; an estimate by the kind of the evidence, not a measured probability.
        evidence: lines, the deciding one first.
        sentence: the verdict in a sentence.
    """

    failure: str
    error_type: str | None
    rank: int | None
    host: str | None
    action: Action
    node_to_exclude: str | None
    confidence: float
    evidence: tuple[Evidence, ...]
    sentence: str

    def as_json(self) -> dict[str, object]:
        """Return the object that `nvrx-why --json` prints."""
        return {
            "class": self.failure, "error_type": self.error_type, "rank": self.rank, "host": self.host,
            "node_to_exclude": self.node_to_exclude, "action": self.action.value, "confidence": self.confidence,
            "evidence": [{"file": each.file, "line": each.line, "text": each.text} for each in self.evidence],
            "sentence": self.sentence,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the verdict that `as_json` has written; of another one, texts are as `shown` returns them.

        Raises:
            ValueError: when it is malformed.
        """
        try:
            lines = ((shown(each["file"]), integer(each["line"], 0), shown(each["text"])) for each in data["evidence"])
            evidence = tuple(Evidence(*each) for each in lines)
            rank = None if data["rank"] is None else integer(data["rank"], 0)
            texts = {
                name: None if data[name] is None else shown(data[name])
                for name in ("error_type", "host", "node_to_exclude")
            }
            return cls(
                string(data["class"]), rank=rank, action=Action(data["action"]), confidence=number(data["confidence"]),
                evidence=evidence, sentence=shown(data["sentence"], MAX_SENTENCE), **texts,
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no verdict: {type(error).__name__}: {error}") from error


def without_escapes(text: str) -> str:
    """Return a text without the escape sequences of terminals."""
    return _ESCAPES.sub("", text) if "\x1b" in text or "\x9b" in text else text


def shown(text: str, most: int = MAX_SHOWN) -> str:
    """Return a text as a terminal or a message may have it: one line of `most` characters, without secrets."""
    text = without_escapes(text[: 8 * most]).replace("\t", " ")
    if not text.isascii() or not text.isprintable():
        text = "".join("?" if unicodedata.category(each) in _HIDDEN else each for each in text)
    for secret in _SECRETS:
        text = secret.sub(rf"\g<kept>{_REDACTED}", text)
    text = _MAY_BE_KEY.sub(_without_key, text)
    text = text.strip()
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _without_key(found: re.Match[str]) -> str:
    """Return what is shown of text that may be a line of a key in base64."""
    text = found[0]
    return text if len(_OF_WORDS.sub("", text)) < 0.6 * len(text) else _REDACTED
