"""The command `nvrx-attribution`: a service that analyses the logs of jobs, and has a language model explain them.

`ft_launcher --ft-attribution-endpoint localhost` starts one. What it needs is in the extra `attribution`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from nvrx_core.attribution.service_settings import (
    Model,
    ServiceSettings,
    check_export_url,
    check_installed,
    check_model_url,
    read_key,
)
from nvrx_core.errors import USAGE, ConfigurationError
from nvrx_core.parsing import parse_endpoint
from nvrx_core.process.log_lines import TEXT, log_formatter
from nvrx_core.process.service import input_ends, read_token, start_service
from nvrx_core.settings import environment

__all__ = ["main"]

log = logging.getLogger("nvrx_core.attribution")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; returns 0 at the end, 1 when it cannot listen, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        "nvrx-attribution", description="Analyse the logs of jobs, and answer over the network."
    )
    parser.add_argument(
        "--listen", metavar="address", default="127.0.0.1:50050", help="address and port; port 0 for a free one"
    )
    parser.add_argument("--listen-descriptor", metavar="n", type=int, default=-1, help="a socket that listens already")
    parser.add_argument("--root", metavar="folder", required=True, help="the folder below which the logs are")
    parser.add_argument(
        "--token-file", metavar="file", default="", help="the file with the token that requests must show"
    )
    parser.add_argument(
        "--llm-api-key-file", metavar="file", default="", help="the file with the key of the model, of mode 600"
    )
    parser.add_argument(
        "--llm-base-url", metavar="url", default="", help="of the model, as in https://api.example.com/v1"
    )
    parser.add_argument(
        "--llm-model", metavar="name", default="", help="its name; without it, rules alone give verdicts"
    )
    parser.add_argument("--export-url", metavar="url", default="", help="gets each result")
    parser.add_argument(
        "--log-level",
        metavar="level",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING"),
        help="debug, info or warning, in capitals",
    )
    parser.add_argument("--job", metavar="name", default="", help="the job's name, for the log lines of this process")
    parser.add_argument("--until-input-ends", action="store_true", help="ignore signals, and end with standard input")
    given = parser.parse_args(argv)
    level = logging.getLevelNamesMapping()[given.log_level]
    if given.until_input_ends:
        start_service("attribution", given.job, level)
    else:
        logging.basicConfig(level=level)
        logging.getLogger().handlers[0].setFormatter(log_formatter(TEXT, "attribution", given.job, several_nodes=False))
    for noisy in ("httpx", "httpcore", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        settings = _settings(given)
        check_installed("nvrx-attribution")
    except (ConfigurationError, OSError, ValueError) as error:
        log.error("the attribution service does not start: %s", error)
        return USAGE
    from nvrx_core.attribution.web_service import serve

    try:
        asyncio.run(serve(settings, input_ends if given.until_input_ends else asyncio.Event().wait))
    except OSError as error:
        log.error("the attribution service ends: %s", error)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _settings(given: argparse.Namespace) -> ServiceSettings:
    is_free = given.listen.endswith(":0")
    host, port = (parse_endpoint(given.listen[:-2], 1)[0], 0) if is_free else parse_endpoint(given.listen)
    model = None
    if given.llm_base_url or given.llm_model:
        check_model_url(given.llm_base_url, "--llm-base-url")
        if not given.llm_model:
            raise ConfigurationError("command line", "--llm-model", "not given with --llm-base-url", "give both")
        key_file = given.llm_api_key_file or environment.model_key_file()
        model = Model(given.llm_base_url, given.llm_model, read_key(key_file, "--llm-api-key-file"))
    if given.export_url:
        check_export_url(given.export_url, "--export-url")
    root = Path(given.root).resolve(strict=True)
    if not root.is_dir():
        raise ConfigurationError("command line", "--root", f"{given.root} is no folder", "name that of the logs")
    token = read_token(Path(given.token_file), "attribution service") if given.token_file else None
    return ServiceSettings(host, port, str(root), given.listen_descriptor, token, model, given.export_url)


if __name__ == "__main__":
    sys.exit(main())
