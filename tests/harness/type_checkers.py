"""mypy and pyright on the script of a user, who has nvrx installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CHECKERS", "Findings", "checked"]

ROOT: Final = Path(__file__).parents[2]
CHECKERS: Final = {
    "mypy": [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")],
    "pyright": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
}
ENVIRON: Final = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYRIGHT_PYTHON_")},
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",  # or it asks for its newest version
    "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("", "integrations", "launcher")),
}


@dataclass(frozen=True)
class Findings:
    """What a checker says of a script.

    Attributes:
        revealed: the types that `reveal_type` shows, without the modules of their names, in order.
        errors: the messages of the errors, by line.
        output: all of it.
    """

    revealed: list[str]
    errors: list[tuple[int, str]]
    output: str

    @property
    def wrong_lines(self) -> list[int]:
        """The lines with errors."""
        return [line for line, _ in self.errors]


def checked(checker: str, script: str, folder: Path) -> Findings:
    """Return what a checker says of a script that is written to `folder`.

    pyright runs in that folder, so that nvrx is an installed package for it and not a part of the project.
    """
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [*CHECKERS[checker], str(folder / "script.py")],
        cwd=folder if checker == "pyright" else ROOT, env=ENVIRON, capture_output=True, text=True, check=False,
    )  # fmt: skip
    revealed = re.findall(r'(?:Revealed type is|Type of ".*" is) "(.*)"', done.stdout)
    errors = re.findall(r"script\.py:(\d+)(?::\d+)?.* error: (.*)", done.stdout)
    return Findings(
        [re.sub(r"^def |[\w.]+\.(?=\w)", "", each).replace("*Any, **Any", "...") for each in revealed],
        [(int(line), message) for line, message in errors],
        done.stdout + done.stderr,
    )
