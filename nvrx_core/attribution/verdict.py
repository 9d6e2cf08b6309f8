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
_SECRET_NAME: Final = (
    r"(?:pass(?:word|wd|phrase)|(?<!old)pwd(?!=/)|secret|credential|api[_-]?key"
    r"|(?:access|account|auth|client|encryption|master|private|shared|signing|ssh|storage)[_-]?key"
    r"|(?<!\bper.)(?<!unexpected.)(?<!bos_)(?<!cls_)(?<!eos_)(?<!mask_)(?<!pad_)(?<!sep_)(?<!unk_)"
    r"token(?![a-rt-z]|s\b|[_-](?:count|id|ind|len|type))|x-amz-signature)"
)
"""Part of a name whose value is a secret; `tokenizer`, `tokens` and `pad_token` are none, nor is every `key`."""
_SECRET_VALUE: Final = (
    r"(?!(?:none|null|true|false|expected|field|invalid|missing|must|not|required)(?:[\s,;)}\]]|$))"
    r"(?(quote)(?:(?!(?P=quote))(?:\\.|.))+|[^\s\"',;}&][^\s\",;}&]*)"
)
"""To the closing quote, where there is one; what says that there is no value, or a wrong one, is left."""
_QUOTE: Final = r"(?:[bru]{0,2}(?P<quote>\\*[\"']))?"
_SECRETS: Final = tuple(
    re.compile(each)
    for each in (
        r"(?i)(?P<kept>(?:authorization|cookies?)(?:\\?[\"']?\s*[=:]|[\"'],)\s*(?:[bru]{0,2}\\?[\"'])?)[^\s\"'\\][^\"'\\]*",
        r"(?i)(?P<kept>" + _SECRET_NAME + r"[\w.-]{0,32}\\?[\"']?\]?\s*(?:=>?(?!=)|:=?(?!:))\s*" + _QUOTE + ")"
        r"(?:(?:bearer|basic|token)\s+)?" + _SECRET_VALUE,
        r"(?P<kept>(?:[A-Z0-9]_KEY|[?&;]sig)=)[^\s\"',;}&]+",
        r"(?i)(?P<kept>(?<![\w-])--?[\w-]{0,64}?"
        + _SECRET_NAME
        + r"[\w-]{0,32}[\"']?,?\s+"
        + _QUOTE
        + r")(?![\"']?-)"
        + _SECRET_VALUE,
        r"(?i)(?P<kept>\b(?:bearer|basic)\s+)(?=\S*[\d=._-])[\w.~+/=-]{8,}",
        r"(?P<kept>\b[a-z][a-z0-9+.-]*://)(?:(?!git@)[^\s:/@?#\"'<>]+|[^\s:/@]*:(?!\d{1,5}/)[^\s\"'<>]+)(?=@)",
        (
            r"(?P<kept>)\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|nvapi-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
            r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
            r"|pypi-[\w-]{16,}|dckr_pat_[\w-]{16,}|npm_[A-Za-z0-9]{30,}|ya29\.[\w-]{20,})"
        ),
        r"(?i)(?P<kept>(?:wandb|key|token|secret)\W{1,3})[0-9a-f]{32,}\b",
        r"(?P<kept>)-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*",
        r"(?P<kept>(?<![\w./+-]))(?=[a-z0-9+/]*[A-Z])(?=[A-Z0-9+/]*[a-z])(?=[A-Za-z+/]*\d)[A-Za-z0-9+][A-Za-z0-9+/]{39,}={0,2}(?![\w./-])",
    )
)
"""Forms of secrets; the last one is a line of a key in base64. What `kept` matches is shown."""


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
    text = text.strip()
    return text if len(text) <= most else f"{text[: most - 3]}..."
