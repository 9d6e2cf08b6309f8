"""The command `ft_launcher`; invalid arguments end it before anything is started."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final, NoReturn

from nvrx_core.errors import ConfigurationError
from nvrx_core.process.descriptors import open_standard_descriptors
from nvrx_core.process.log_lines import log_formatter
from nvrx_core.process.standard_output import show
from nvrx_launcher.arguments import explained, parse_arguments
from nvrx_launcher.console import Console, ConsoleHandler
from nvrx_launcher.exit_codes import FAILED, USAGE
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.signals import EarlyEnd, end_by_signals
from nvrx_launcher.torch_questions import count_devices

__all__ = ["main", "run"]

log = logging.getLogger("nvrx_launcher")
HINTS: Final = {
    errno.EAGAIN: ": more processes are needed (ulimit -u)",
    errno.EMFILE: ": more open files are needed (ulimit -n)",
}


def main(argv: Sequence[str] | None = None, *, early: EarlyEnd | None = None) -> int:
    """Run a job; returns 0 when it is done, 1 when a worker failed, 2 for wrong usage, 93 for "do not start again".

    Args:
        argv: the command line.
        early: gets the form of the log.
    """
    argv = sys.argv[1:] if argv is None else argv
    arguments, config = parse_arguments(argv, os.environ)
    if arguments.ft_explain:
        show("\n".join(explained(argv, os.environ, arguments, config)))
        return 0
    try:
        options = LaunchOptions.of(arguments, count_devices, os.environ)
    except ConfigurationError as error:
        print(f"ft_launcher: error: {error}", file=sys.stderr)
        return USAGE
    from nvrx_core.store.endpoint import StoreConnectionError
    from nvrx_launcher.agent import Agent

    agents, console = list[Agent](), Console()
    handler = ConsoleHandler(console.stderr)
    logging.basicConfig(level=config.log_level, handlers=[handler])
    formatter = log_formatter(
        config.log_format, "ft_launcher", options.run_id, several_nodes=options.max_nodes > 1,
        position=lambda: agents[0].position if agents else {},
    )  # fmt: skip
    handler.setFormatter(formatter)
    if early is not None:
        early.formatter = formatter
    try:
        with ExitStack() as cleanup:
            agents.append(Agent(options, config, dict(os.environ), cleanup, is_command=True, console=console))
            return agents[0].run()
    except (ConfigurationError, StoreConnectionError, OSError) as error:
        log.error("the launcher ends: %s%s", error, HINTS.get(getattr(error, "errno", 0), ""))
        return USAGE if isinstance(error, ConfigurationError) else FAILED
    except Exception:  # boundary: a defect of the launcher; it is written without waiting for the console
        log.exception("the launcher ends by a defect of its own")
        return FAILED
    finally:
        console.close()


def run() -> NoReturn:
    """Run a job, and end this process at once: torch aborts an interpreter that ends while a thread waits for a key."""
    _open_standard_streams()
    early = EarlyEnd()
    end_by_signals(early)
    try:
        code = main(early=early)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else USAGE
    except BaseException:  # boundary: the process ends here
        traceback.print_exc()
        code = FAILED
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a terminal or a pipe that is gone
            stream.flush()
    os._exit(code)


def _open_standard_streams() -> None:
    """Open those that were closed: other descriptors would get their numbers, and workers would inherit those."""
    open_standard_descriptors()
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(os.devnull, mode)  # noqa: SIM115
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )
