"""Verifies several programs in one process, as the command does one: Lightning is imported once.

    python -m tests.harness.lightning.verifying OUTPUT HOOKS RESUME PART | PART:NAME ...

`RESUME` is that of `VerifySettings`. `OUTPUT` gets one JSON line for each program: its name, its report, what of it is
not as expected, and whether it is expected to be the same after each fault from a checkpoint.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from nvrx_lightning import environment
from nvrx_lightning.verification.settings import VerifySettings
from nvrx_lightning.verification.source import Source

from tests.harness.lightning.programs.expectation import KNOWN

__all__: list[str] = []

PROGRAMS = "tests.harness.lightning.programs"


def main(output: str, hooks: str, resume: str, *names: str) -> None:
    environment.begin_verification()
    from nvrx_lightning.verification.flow import run_verification

    for name in names:
        importlib.import_module(f"{PROGRAMS}.{name.partition(':')[0]}")
    settings = VerifySettings(hooks=tuple(filter(None, hooks.split(","))), resume=resume)
    for name in (each for each in KNOWN if each in names or each.partition(":")[0] in names):
        report = run_verification(Source.parse(f"{PROGRAMS}.{name}"), settings, lambda line: None)
        expected = KNOWN[name]
        line = {"name": name, "report": report.written(), "unmet": expected.unmet(report), "same": expected.is_same}
        print(f"{name} {line['unmet'] or ''}\n{report}\n", flush=True)
        with Path(output).open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
