"""The command `nvrx-why`: the verdict of a job's logs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nvrx_core.attribution.reading import log_files, verdict_of_files
from nvrx_core.attribution.verdict import Verdict, shown
from nvrx_core.process.standard_output import show

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict; return exit code 2 when there is nothing to read."""
    parser = argparse.ArgumentParser("nvrx-why", description="Say who was to blame for the end of a job, and why.")
    parser.add_argument("logs", metavar="DIR|LOG", nargs="+", type=Path, help="the job's logs, or folders of them")
    parser.add_argument("--json", action="store_true", help="print one object, for programs")
    parser.add_argument("--skip", metavar="N", type=int, default=0, help="leave out so many bytes at their begin")
    arguments = parser.parse_args(argv)
    try:
        files = log_files(arguments.logs)
        verdict = verdict_of_files(files, skip=max(0, arguments.skip))
    except OSError as error:
        print(f"nvrx-why: {shown(str(error))}; name the job's logs, or a folder of them", file=sys.stderr)
        return 2
    if not files:
        print("nvrx-why: no file in what was named; name the job's logs, or a folder of them", file=sys.stderr)
        return 2
    show(json.dumps(verdict.as_json()) if arguments.json else _text(verdict))
    return 0


def _text(verdict: Verdict) -> str:
    lines = [f"{verdict.failure} (confidence {verdict.confidence:.2f}): {verdict.sentence}"]
    lines += [f"  {shown(each.file)}:{each.line}: {each.text}" for each in verdict.evidence]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
