"""What the service processes beside a launcher have in common: signals, log lines, the job's token, and their end.

Such a process ends with its standard input, which the launcher holds open; so it never outlives the launcher.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.process.log_lines import TEXT, log_formatter
from nvrx_core.process.signals import ignore_sent_to_all
from nvrx_core.process.unblocked_log import UnblockedHandler

__all__ = ["add_service_options", "input_ends", "read_token", "start_service"]

STDERR: Final = 2
MIN_TOKEN: Final = 16
MAX_TOKEN: Final = 1024


def add_service_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that a service of a job has, whatever it serves."""
    parser.add_argument("--token-file", required=True, help="the file with the job's token, 16 to 1024 bytes")
    parser.add_argument("--job", default="", help="the job's name, for the log lines of this process")
    parser.add_argument("--within", type=float, default=60.0, help="seconds for what is left at the end")


def start_service(program: str, job: str, level: int = logging.INFO) -> None:
    """Ignore the signals that a scheduler sends to all processes of a job, and log to standard error."""
    ignore_sent_to_all()
    handler = UnblockedHandler(STDERR)
    handler.setFormatter(log_formatter(TEXT, program, job, several_nodes=True))
    logging.basicConfig(level=level, handlers=[handler])


def read_token(path: Path, service: str) -> bytes:
    """Return the content of a token's file, without white space around it.

    Args:
        path: the file.
        service: whose token it is, for the error.

    Raises:
        ConfigurationError: when it is too short or too long.
        OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        token = file.read(MAX_TOKEN + 2).strip()
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN:
        problem = f"{path} has {len(token)} bytes"
        advice = "write 16 to 1024 bytes, as with: openssl rand -hex 32"
        raise ConfigurationError(service, "token", problem, advice)
    return token


async def input_ends() -> None:
    """Wait for the end of standard input; what is read is ignored."""
    fd, ended = sys.stdin.fileno(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(fd, 4096):
            loop.remove_reader(fd)
            ended.set()

    loop.add_reader(fd, read)
    await ended.wait()
