"""The command: `python -m nvrx_lightning.verify path/to/file.py:make`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nvrx_lightning import environment
from nvrx_lightning.verification.errors import VerificationError
from nvrx_lightning.verification.report import VerificationReport
from nvrx_lightning.verification.settings import VerifySettings
from nvrx_lightning.verification.source import Source

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verification, and print its report.

    Returns:
        0 if nothing differs after any fault, 1 if something does, 2 if nothing could be verified.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    environment.begin_verification()
    try:
        if given.job:
            job = json.loads(given.job)
            hooks = tuple(job["settings"].pop("hooks"))
            source, settings = Source(**job["source"]), VerifySettings(**job["settings"], hooks=hooks)
        elif given.source:
            job, source = {}, Source.parse(given.source)
            settings = VerifySettings(
                epochs=given.epochs, batches=given.batches, hooks=tuple(filter(None, given.hooks.split(","))),
                every=given.every, limit=given.limit, resume=given.resume,
            )  # fmt: skip
        else:
            parser.error("name the function: path/to/file.py:make")
    except VerificationError as error:
        report, job = VerificationReport(refused=str(error)), {}
    else:
        from nvrx_lightning.verification.flow import run_verification  # torch reads the variables when it is imported

        report = run_verification(source, settings, _tell)
    if job:
        Path(job["report"]).write_text(json.dumps(report.written()))
    if not (job and report.refused):
        print(report, file=sys.stderr if report.refused else sys.stdout, flush=True)
    return report.exit_code


def _tell(line: str) -> None:
    """Show progress on a terminal, in one line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}\r")
        sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    defaults = VerifySettings()
    parser = argparse.ArgumentParser(
        "python -m nvrx_lightning.verify",
        description="Runs a training of a few batches on two CPU ranks, with a fault at each hook, and compares it "
        "with the training without a fault, bit by bit. Exit code 0: nothing differs; 1: something does; 2: not "
        "verified.",
    )
    parser.add_argument("source", nargs="?", help="path/to/file.py:make; make() returns trainer, module, loaders")
    parser.add_argument("--epochs", type=int, default=defaults.epochs, help="at most (default %(default)s)")
    parser.add_argument("--batches", type=int, default=defaults.batches, help="of an epoch, at most (%(default)s)")
    parser.add_argument("--hooks", default="", metavar="NAME,NAME", help="only these (default: all)")
    parser.add_argument("--every", action="store_true", help="each hook of each object, and its first call, too")
    parser.add_argument("--limit", type=float, default=defaults.limit, help="seconds for a fit (default %(default)s)")
    parser.add_argument(
        "--resume", default="", metavar="WHAT", help="memory or checkpoint: from what restarts go on (default: as the "
        "strategy says)",
    )  # fmt: skip
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser
