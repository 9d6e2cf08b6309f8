"""What the processes of per-cycle logs have in common: options, signals, log lines, and the job's token."""

from __future__ import annotations

import argparse
import logging
import signal
from pathlib import Path
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.process.log_lines import TEXT, log_formatter
from nvrx_core.process.unblocked_log import UnblockedHandler

__all__ = ["add_common", "read_token", "start_process"]

STDERR: Final = 2
SENT_TO_ALL: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
MIN_TOKEN: Final = 16
MAX_TOKEN: Final = 1024


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that all have."""
    parser.add_argument("--token-file", required=True, help="the file with the job's token, 16 to 1024 bytes")
    parser.add_argument("--job", default="", help="the job's name, for the log lines of this process")
    parser.add_argument("--within", type=float, default=60.0, help="seconds for what is left at the end")
    parser.add_argument("--tls-authority", default="", help="PEM file with the authority of the server's certificate")


def start_process(program: str, job: str) -> None:
    """Ignore the signals that a scheduler sends to all processes of a job, and log to standard error."""
    for number in SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)
    handler = UnblockedHandler(STDERR)
    handler.setFormatter(log_formatter(TEXT, program, job, several_nodes=True))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def read_token(path: Path) -> bytes:
    """Return the content of a token's file, without white space around it.

    Raises:
        ConfigurationError: when it is too short or too long.
        OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        token = file.read(MAX_TOKEN + 2).strip()
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN:
        problem = f"{path} has {len(token)} bytes"
        advice = "write 16 to 1024 bytes, as with: openssl rand -hex 32"
        raise ConfigurationError("log server", "token", problem, advice)
    return token
