"""mypy and pyright on the scripts of a user, who has nvrx installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
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
        output: all that it says, of all scripts.
    """

    revealed: list[str]
    errors: list[tuple[int, str]]
    output: str

    @property
    def wrong_lines(self) -> list[int]:
        """The lines with errors."""
        return [line for line, _ in self.errors]


def checked(checker: str, scripts: Mapping[str, str], folder: Path) -> dict[str, Findings]:
    """Return what a checker says of each of some scripts, which are written to `folder` and checked in one run.

    pyright runs in that folder, so that nvrx is an installed package for it and not a part of the project.
    """
    paths = {name: folder / f"{name}_script.py" for name in scripts}
    for name, script in scripts.items():
        paths[name].write_text(script)
    done = subprocess.run(
        [*CHECKERS[checker], *map(str, paths.values())],
        cwd=folder if checker == "pyright" else ROOT, env=ENVIRON, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {name: _findings(path.name, done.stdout + done.stderr) for name, path in paths.items()}


def _findings(script: str, output: str) -> Findings:
    own = "\n".join(line for line in output.splitlines() if f"{script}:" in line)
    revealed = re.findall(r'(?:Revealed type is|Type of ".*" is) "(.*)"', own)
    errors = re.findall(r":(\d+)(?::\d+)?.* error: (.*)", own)
    return Findings(
        [re.sub(r"^def |[\w.]+\.(?=\w)", "", each).replace("*Any, **Any", "...") for each in revealed],
        [(int(line), message) for line, message in errors],
        output,
    )
