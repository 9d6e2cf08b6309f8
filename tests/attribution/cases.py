"""The labelled corpus: logs of failures with what is to be said of them.

`corpus/development.txt` and `messages.txt` are what the rules were written by, `corpus/held_out.txt` what they are
measured on; the split is by source: by launcher and form of the logs for those that were injected (`inject.py`), by the
place where a text was published for the others. `corpus/arranged.txt` is held out, too: arrangements that are hard
to tell, and clean logs that look like failures. It was written by hand after the rules, by their author, and no rule
was changed on its account. Of 44 logs of usual frameworks in unusual arrangements, written in one go, the rules were
mended by those of the sources `unusual/*`, which are in the development part, and measured on those of
`arranged/unusual`; of the latter one was looked at, and is still named wrongly. A file has cases, each a line
`=== {label}` and its logs, each after a line `--- NAME`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvrx_core.attribution.cascade import decide
from nvrx_core.attribution.classification import Classifier
from nvrx_core.attribution.origin import of_file, parse
from nvrx_core.attribution.reading import log_files, verdict_of_files
from nvrx_core.attribution.verdict import Verdict

__all__ = ["PARTS", "Case", "cases", "messages", "verdict_of_logs", "verdict_of_text"]

PARTS = ("development", "held_out", "arranged")
_CASE = re.compile(r"^=== (?P<label>\{.*\})$", re.MULTILINE)
_FILE = re.compile(r"^--- (?P<name>\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """Logs, and what is to be said of them.

    Attributes:
        name: of the case.
        source: where it is from.
        failure: the class.
        rank: the culprit, None where the logs do not name one.
        host: its host, None where it is not labelled.
        logs: text by the name of a file.
    """

    name: str
    source: str
    failure: str
    rank: int | None
    host: str | None
    logs: dict[str, str]

    @property
    def is_injected(self) -> bool:
        """Whether the fault was really injected."""
        return self.source.startswith("injected/")

    def verdict(self, folder: Path) -> Verdict:
        """Write the logs into an empty folder, and return what is said of them."""
        for name, text in self.logs.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return verdict_of_files(log_files([folder]))


def cases(part: str) -> Iterator[Case]:
    """Yield the cases of a part."""
    text = (Path(__file__).parent / "corpus" / f"{part}.txt").read_text()
    _, *pieces = _CASE.split(text)
    for label, body in zip(pieces[::2], pieces[1::2], strict=True):
        values = json.loads(label)
        _, *files = _FILE.split(body)
        logs = {name: content.removeprefix("\n") for name, content in zip(files[::2], files[1::2], strict=True)}
        yield Case(values["case"], values["source"], values["class"], values["rank"], values.get("host"), logs)


def messages() -> list[tuple[str, str]]:
    """Return well-known messages, one form of each, and lines of healthy jobs that look like one, with their class."""
    _, *pieces = re.split(r"(?m)^=== (\w+)\n", (Path(__file__).parent / "corpus" / "messages.txt").read_text())
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def verdict_of_text(text: str) -> Verdict:
    """Return what is said of the text of one log."""
    return verdict_of_logs({"run.log": text})


def verdict_of_logs(logs: Mapping[str, str]) -> Verdict:
    """Return what is said of logs, by name; without files."""
    classifier = Classifier()
    for name, text in logs.items():
        for number, raw in enumerate(text.split("\n"), 1):
            for line in parse(name, number, raw, of_file(name)):
                classifier.feed(line)
    return decide(classifier.findings(), classifier.seen)
