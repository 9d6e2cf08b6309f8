"""The attribution service's part in a job: each cycle's log is submitted to it, and what it says is logged.

The launcher beside the rendezvous store does this; with the endpoint `localhost` it also starts the service. A thread
submits and asks, so nothing here delays a restart; the end of the job waits for the last result, within bounds. The
verdict that the launcher gives itself (`cycle_verdict`) depends on none of it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_launcher.history import History
from nvrx_launcher.log_options import LogOptions
from nvrx_launcher.log_service import Where
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.messages import Decision, Verdict
from nvrx_launcher.service_program import ServiceProgram

if TYPE_CHECKING:
    from nvrx_launcher.attribution_client import Advice, AttributionClient

__all__ = ["Attribution", "StopAdvised", "attribution_log", "check_attribution"]

log = logging.getLogger("nvrx_launcher")
MANAGED: Final = re.compile(r"localhost(?::(\d{1,5}))?")
"""The endpoint of a service that the launcher starts, on the loopback interface."""
PORT: Final = 50050
MAX_PORT: Final = 65535
NO_RESTART: Final = "no-restart"
STOP: Final = "STOP"
END_TIMEOUT: Final = 10.0
"""Seconds that the end of the job waits for the last result."""
SIGNALLED_TIMEOUT: Final = 1.0
"""The same, of a launcher that was sent a signal."""
ENDS_WITHIN: Final = 5.0
"""Seconds that the service has to end in."""


@dataclass(frozen=True)
class StopAdvised:
    """The service advises against a restart, and the options say that this ends the job.

    Attributes:
        reason: why.
    """

    reason: str


def attribution_log(prefix: str) -> str:
    """Return the file with the service's own log, beside the per-cycle logs with this prefix."""
    base, extension = os.path.splitext(prefix)
    return f"{base}_attribution{extension or '.log'}"


def check_attribution(config: FaultToleranceConfig, logs: LogOptions) -> None:
    """Refuse options that contradict each other, on each node, before anything is started.

    Raises:
        ConfigurationError: names the option.
    """
    endpoint = config.attribution_endpoint
    if not endpoint:
        for name in ("export_url", "llm_api_key_file", "llm_base_url", "llm_model"):
            if getattr(config, f"attribution_{name}") is not None:
                problem = "given without --ft-attribution-endpoint"
                raise _wrong(name.replace("_", "-"), problem, "give both; localhost starts a service")
        return
    if not logs.prefix:
        advice = "give --ft-per-cycle-applog-prefix as well"
        raise _wrong("endpoint", "given without per-cycle logs, which the service analyses", advice)
    if (port := _managed_port(endpoint)) is None:
        if config.attribution_export_url is not None:
            problem = f"the service at {endpoint} is not started here"
            raise _wrong("export-url", problem, "leave it out, or use --ft-attribution-endpoint localhost")
        return
    if not 0 < port <= MAX_PORT:
        raise _wrong("endpoint", f"{port} is no port", "write it as in localhost:50050")
    from nvrx_core.attribution.service_settings import check_export_url, check_installed, check_model_url

    check_installed("--ft-attribution-endpoint")
    if config.attribution_export_url is not None:
        check_export_url(config.attribution_export_url, "--ft-attribution-export-url")
    if (config.attribution_llm_base_url is None) != (config.attribution_llm_model is None):
        raise _wrong("llm-model", "the URL and the name of the model belong together", "give both, or none")
    if config.attribution_llm_base_url is not None:
        check_model_url(config.attribution_llm_base_url, "--ft-attribution-llm-base-url")


class Attribution:
    """The service of a job, and the questions to it.

    Args:
        config: the settings.
        logs: the per-cycle logs.
        loop: watches the service, and is woken for events.
        history: gets the results.
        where: the place of this launcher.
        environ: the launcher's environment.

    Raises:
        ConfigurationError: when the file with the key cannot be used.
    """

    def __init__(
        self, config: FaultToleranceConfig, logs: LogOptions, loop: EventLoop, history: History, *, where: Where,
        environ: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._loop, self._history, self._stops = loop, history, config.attribution_stop_action == NO_RESTART
        self._program: ServiceProgram | None = None
        self._client: AttributionClient | None = None
        self._path, self._cycle, self._is_signalled = "", -1, False
        self._advised = deque[StopAdvised]()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.watch(self._woken, partial(os.eventfd_read, self._woken))
        endpoint, token = config.attribution_endpoint, ""
        if not endpoint or not where.is_host:
            return
        if (port := _managed_port(endpoint)) is not None:
            endpoint, token = f"http://localhost:{port}", secrets.token_hex(32)
            command = _command(config, logs.prefix, port, job=where.job, environ=environ)
            self._program = ServiceProgram(
                loop, "attribution service", command, token=token.encode(), log_file=attribution_log(logs.prefix),
                environ=environ,
            )  # fmt: skip
            self._program.start()
        if not endpoint.startswith(("http://", "https://")):
            log.warning("no log is submitted to %s: nvrx submits over http and https only", endpoint)
            return
        from nvrx_launcher.attribution_client import AttributionClient

        known = {"user": ("SLURM_JOB_USER", "USER"), "job_id": ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID")}
        job = {name: next((environ[each] for each in names if environ.get(each)), "") for name, names in known.items()}
        self._client = AttributionClient(
            endpoint, token, {name: each for name, each in job.items() if each},
            starts_within=config.attribution_startup_timeout, advised=self._said,
        )  # fmt: skip

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return math.inf if self._program is None else self._program.deadline

    def tick(self, *, now: float) -> None:
        """Start a service again that has exited."""
        if self._program is not None:
            self._program.tick(now=now)

    def decided(self, decision: Decision, path: str) -> None:
        """Handle a decision for all nodes, before it is carried out.

        Args:
            decision: the decision.
            path: the log of the cycle that runs, "" for none.
        """
        if self._client is None:
            return
        is_failed_end = decision.verdict is Verdict.END and decision.code
        if path and (decision.verdict is Verdict.STOP or (is_failed_end and decision.cycle != self._cycle)):
            self._path, self._cycle = path, decision.cycle
            self._client.submit(decision.cycle, path, is_final=False)
        if self._path and decision.verdict in (Verdict.RUN, Verdict.END):  # its last lines have come
            self._client.submit(self._cycle, self._path, is_final=True)
            self._path = ""

    def signalled(self) -> None:
        """Record that this launcher was sent a signal: it has little time."""
        self._is_signalled = True

    def events(self) -> tuple[StopAdvised, ...]:
        """Return what the service has advised since the last call."""
        found = list[StopAdvised]()
        while self._advised:
            found.append(self._advised.popleft())
        return tuple(found)

    def finish(self) -> None:
        """Wait for the last result, within bounds."""
        if self._client is not None:
            self._client.finish(SIGNALLED_TIMEOUT if self._is_signalled else END_TIMEOUT)

    def close(self) -> None:
        """End the service."""
        has_ended = self._client is None or self._client.close()
        if self._program is not None:
            self._program.finish()
            self._program.close(time.monotonic() + ENDS_WITHIN)
        self._loop.forget(self._woken)
        if has_ended:  # else the thread may still write to it
            os.close(self._woken)

    def _said(self, advice: Advice) -> None:
        """Say a result, and have a stop carried out that is wanted; in the client's thread."""
        adds = f"; the model adds: {advice.explanation}" if advice.explanation else ""
        log.warning("attribution of cycle %d: %s: %s%s", advice.cycle, advice.action or "none", advice.reason, adds)
        self._history.attributed(advice.cycle, advice.action, advice.reason, advice.explanation)
        if self._stops and advice.action == STOP:
            self._advised.append(StopAdvised(f"by the attribution of cycle {advice.cycle}: {advice.reason}"))
            os.eventfd_write(self._woken, 1)


def _managed_port(endpoint: str) -> int | None:
    """Return the port of a service that is to be started; None for one that is there."""
    found = MANAGED.fullmatch(endpoint)
    return None if found is None else int(found[1] or PORT)


def _command(
    config: FaultToleranceConfig, prefix: str, port: int, *, job: str, environ: Mapping[str, str]
) -> list[str]:
    """Return what starts the service.

    Raises:
        ConfigurationError: when the file with the key cannot be used.
    """
    from nvrx_core.attribution.service_settings import read_key

    key = config.attribution_llm_api_key_file or environ.get("LLM_API_KEY_FILE", "")
    read_key(key, "--ft-attribution-llm-api-key-file")
    if config.attribution_llm_base_url is None:
        log.warning("the attribution service goes by rules alone: no --ft-attribution-llm-base-url is given")
    given = {
        "--listen": f"127.0.0.1:{port}", "--root": os.path.dirname(os.path.realpath(prefix)), "--job": job,
        "--llm-api-key-file": key, "--llm-base-url": config.attribution_llm_base_url,
        "--llm-model": config.attribution_llm_model, "--export-url": config.attribution_export_url,
        "--log-level": config.attribution_log_level,
    }  # fmt: skip
    command = [sys.executable, "-m", "nvrx_core.attribution.service", "--until-input-ends"]
    return command + [f"{name}={each}" for name, each in given.items() if each]


def _wrong(option: str, problem: str, advice: str) -> ConfigurationError:
    return ConfigurationError("command line", f"--ft-attribution-{option}", problem, advice)
