"""The attribution service's part in a job: each cycle's log is submitted to it, and what it says is logged.

The launcher that runs the coordinator does this; with the endpoint `localhost` that beside the rendezvous store, which
also starts the service. A thread submits and asks, so nothing here delays a restart; the end of a job that has failed
waits for the last result, within bounds. The verdict that the launcher gives itself (`cycle_verdict`) depends on none
of it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.logs.chunks import cycle_file
from nvrx_core.parsing import MAX_PORT
from nvrx_core.process.service import read_token
from nvrx_launcher.exit_codes import FAILED
from nvrx_launcher.history import History
from nvrx_launcher.log_options import LogOptions
from nvrx_launcher.log_service import LogService, Where
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import NODES_WAIT, Decision, DecisionKind
from nvrx_launcher.service_program import ServiceProgram

if TYPE_CHECKING:
    from nvrx_launcher.attribution_client import Advice, AttributionClient

__all__ = ["Attribution", "StopAdvised", "attribution_log", "check_attribution"]

log = logging.getLogger("nvrx_launcher")
MANAGED: Final = re.compile(r"localhost(?::(\d{1,5}))?")
"""The endpoint of a service that the launcher starts, on the loopback interface."""
PORT: Final = 50050
NO_RESTART: Final = "no-restart"
STOP: Final = "STOP"
WRITTEN_WITHIN: Final = 2.0
"""Seconds in which the log server writes the last lines of a cycle."""
END_TIMEOUT: Final = 10.0
"""Seconds that the end of the job waits for the last result."""
SIGNALLED_TIMEOUT: Final = 1.0
"""The same, of a launcher that was sent a signal."""
ENDS_WITHIN: Final = 5.0
"""Seconds that the service has to end in."""


@dataclass(frozen=True)
class StopAdvised:
    """The service advises against a restart, this launcher's verdict says the same, and the options want it followed.

    Attributes:
        reason: why.
    """

    reason: str


def attribution_log(prefix: str) -> str:
    """Return the file with the service's own log, beside the per-cycle logs with this prefix."""
    return f"{prefix.removesuffix('.log')}_attribution.log"


def check_attribution(config: FaultToleranceConfig, logs: LogOptions, *, hosts_rendezvous: bool) -> None:
    """Refuse options that contradict each other, on each node, before anything is started.

    Args:
        config: the settings.
        logs: the per-cycle logs.
        hosts_rendezvous: one of the launchers may host the store of the rendezvous.

    Raises:
        ConfigurationError: names the option.
    """
    endpoint = config.attribution_endpoint
    if not endpoint:
        for name in ("export_url", "llm_api_key_file", "llm_base_url", "llm_model", "token_file"):
            if getattr(config, f"attribution_{name}") is not None:
                problem = "given without --ft-attribution-endpoint"
                raise _wrong(name.replace("_", "-"), problem, "give both; localhost starts a service")
        return
    if not logs.prefix:
        advice = "give --ft-per-cycle-applog-prefix as well"
        raise _wrong("endpoint", "given without per-cycle logs, which the service analyses", advice)
    if (port := _managed_port(endpoint)) is not None:
        _check_managed(config, port, hosts_rendezvous=hosts_rendezvous)
        return
    if config.attribution_export_url is not None:
        problem = f"the service at {endpoint} is not started here"
        raise _wrong("export-url", problem, "leave it out, or use --ft-attribution-endpoint localhost")
    if endpoint.startswith(("http:", "https:")):
        from nvrx_core.attribution.service_settings import check_url

        check_url(endpoint, "--ft-attribution-endpoint")


def _check_managed(config: FaultToleranceConfig, port: int, *, hosts_rendezvous: bool) -> None:
    from nvrx_core.attribution.service_settings import check_export_url, check_model_url

    if not 0 < port <= MAX_PORT:
        raise _wrong("endpoint", f"{port} is no port", "write it as in localhost:50050")
    if not hosts_rendezvous:
        problem = "the rendezvous is in no launcher, beside which the service would run"
        raise _wrong("endpoint", problem, "start nvrx-attribution yourself, and give its URL")
    if config.attribution_export_url is not None:
        check_export_url(config.attribution_export_url, "--ft-attribution-export-url")
    if (config.attribution_llm_base_url is None) != (config.attribution_llm_model is None):
        raise _wrong("llm-model", "the URL and the name of the model belong together", "give both, or none")
    if config.attribution_llm_base_url is not None:
        check_model_url(config.attribution_llm_base_url, "--ft-attribution-llm-base-url")


class OwnVerdicts(Protocol):
    """The verdicts that this launcher gives itself (`CycleVerdicts`)."""

    def says_stop(self, cycle: int) -> bool:
        """Return whether the verdict of a cycle is there, and says that a restart would fail again."""


class Attribution:
    """The service of a job, and the questions to it.

    Args:
        config: the settings.
        logs: the per-cycle logs.
        loop: watches the service, and is woken for advice.
        history: gets the results.
        verdicts: of this launcher; advice against a restart counts only where they say the same.
        where: the place of this launcher.
        environ: the launcher's environment.

    Raises:
        ConfigurationError: when the service cannot be started here.
    """

    def __init__(
        self, config: FaultToleranceConfig, logs: LogOptions, loop: EventLoop, history: History, *,
        verdicts: OwnVerdicts, where: Where, environ: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._prefix, self._loop, self._history, self._verdicts = logs.prefix, loop, history, verdicts
        self._stops = config.attribution_stop_action == NO_RESTART
        self._program: ServiceProgram | None = None
        self._client: AttributionClient | None = None
        self._submitted, self._is_running, self._is_signalled = (-1, 0), False, False
        self._advised = list[StopAdvised]()
        self._against: dict[int, str] = {}
        self._listener: socket.socket | None = None
        self._mailbox = Mailbox(loop)
        endpoint, token = config.attribution_endpoint, b""
        if not endpoint:
            return
        if (port := _managed_port(endpoint)) is not None:
            if not where.is_host:
                return
            endpoint, token = f"http://127.0.0.1:{port}", secrets.token_hex(32).encode()
            self._start(config, port, token, job=where.job, environ=environ)
        elif not endpoint.startswith(("http://", "https://")):
            log.warning("no log is submitted to %s: nvrx submits over http and https only", endpoint)
            return
        elif config.attribution_token_file is not None:
            token = _token_in(config.attribution_token_file)
        from nvrx_launcher.attribution_client import AttributionClient

        known = {"user": ("SLURM_JOB_USER", "USER"), "job_id": ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID")}
        job = {name: next((environ[each] for each in names if environ.get(each)), "") for name, names in known.items()}
        self._client = AttributionClient(
            endpoint, token.decode(), {name: each for name, each in job.items() if each},
            starts_within=config.attribution_startup_timeout, written_within=WRITTEN_WITHIN if logs.has_server else 0.0,
            advised=self._said,
        )  # fmt: skip

    def _start(
        self, config: FaultToleranceConfig, port: int, token: bytes, *, job: str, environ: Mapping[str, str]
    ) -> None:  # fmt: skip
        """Start the service, on a socket that listens from now on: nobody else gets its requests."""
        from nvrx_core.attribution.service_settings import check_installed

        check_installed("--ft-attribution-endpoint")
        command = _command(config, self._prefix, job=job, environ=environ)
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            problem = f"port {port} of 127.0.0.1 cannot be used: {os.strerror(error.errno or 0)}"
            raise _wrong("endpoint", problem, "name another one, as in localhost:50123") from None
        descriptor = self._listener.fileno()
        log_file = attribution_log(self._prefix)
        log.info("the attribution service logs to %s", log_file)
        self._program = ServiceProgram(
            self._loop, "attribution service", [*command, f"--listen-descriptor={descriptor}"], token=token,
            log_file=log_file, environ=environ, inherits=[descriptor],
        )  # fmt: skip
        self._program.start()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return math.inf if self._program is None else self._program.deadline

    def tick(self, *, now: float) -> None:
        """Start a service again that has exited."""
        if self._program is not None:
            self._program.tick(now=now)

    def decided(self, decision: Decision, cycle_log: LogService, *, is_coordinator: bool) -> None:
        """Handle a decision for all nodes, before it is carried out.

        Args:
            decision: the decision.
            cycle_log: the log of the present cycle, if this node takes part in it.
            is_coordinator: this launcher runs the coordinator, and submits the logs of the job.
        """
        is_end = decision.kind in (DecisionKind.RUN, DecisionKind.END)
        is_fault = not decision.reason.endswith(NODES_WAIT) and not self._is_signalled
        failed = decision.kind is DecisionKind.STOP or (decision.kind is DecisionKind.END and decision.code == FAILED)
        pending, offset = self._submitted
        if is_coordinator and self._client is not None:
            if failed and is_fault and decision.cycle != pending:
                path = cycle_file(self._prefix, decision.cycle)
                pending, offset = decision.cycle, cycle_log.begins_at if cycle_log.path == path else 0
                self._client.submit(pending, path, offset=offset, is_final=False)
            if is_end and pending >= 0:  # its last lines have come
                self._client.submit(pending, cycle_file(self._prefix, pending), offset=offset, is_final=True)
        self._submitted = (-1, 0) if is_end else (pending, offset)
        self._is_running = decision.kind is DecisionKind.RUN or (self._is_running and not failed and not is_end)
        if decision.kind is DecisionKind.STOP:
            self._advise()

    def signalled(self) -> None:
        """Record that this launcher was sent a signal: it has little time."""
        self._is_signalled = True

    def events(self) -> tuple[StopAdvised, ...]:
        """Return what the service has advised, where it is due, since the last call."""
        if not self._is_running:
            self._advise()
        found, self._advised = self._advised, []
        return tuple(found)

    def finish(self, code: int) -> None:
        """Wait for the last result of a job that has failed, within bounds.

        Args:
            code: the exit code of the launcher.
        """
        if self._client is not None:
            timeout = SIGNALLED_TIMEOUT if self._is_signalled else END_TIMEOUT
            self._client.finish(timeout if code == FAILED else 0.0)

    def close(self) -> None:
        """End the service."""
        if self._client is not None:
            self._client.close()
        if self._program is not None:
            self._program.finish()
            self._program.close(time.monotonic() + (SIGNALLED_TIMEOUT if self._is_signalled else ENDS_WITHIN))
        if self._listener is not None:
            self._listener.close()
        self._mailbox.close()

    def _said(self, advice: Advice) -> None:
        """Say a result; in the client's thread."""
        adds = f"; the model adds: {advice.explanation}" if advice.explanation else ""
        text = f"{advice.action or 'none'}: {advice.reason}{adds}"
        if advice.action == "CONTINUE":
            text = f"{advice.reason}; it may not have been complete"
        log.warning("attribution of cycle %d: %s", advice.cycle, text)
        self._history.attributed(advice.cycle, advice.action, advice.reason, advice.explanation)
        self._mailbox.post(lambda: self._hear(advice))

    def _hear(self, advice: Advice) -> None:
        """Handle advice: against a restart, it is followed while no cycle runs, and when the next one has failed."""
        if self._stops and advice.action == STOP:
            self._against[advice.cycle] = advice.reason

    def _advise(self) -> None:
        for cycle, reason in self._against.items():
            if self._verdicts.says_stop(cycle):
                self._advised.append(StopAdvised(f"by the attribution of cycle {cycle}: {reason}"))
                self._against.clear()
                return


def _token_in(path: str) -> bytes:
    try:
        return read_token(Path(path), "attribution service")
    except OSError as error:
        raise _wrong("token-file", str(error), "name a file with the token of the service") from None


def _managed_port(endpoint: str) -> int | None:
    """Return the port of a service that is to be started; None for one that is there."""
    found = MANAGED.fullmatch(endpoint)
    return None if found is None else int(found[1] or PORT)


def _command(config: FaultToleranceConfig, prefix: str, *, job: str, environ: Mapping[str, str]) -> list[str]:
    """Return what starts the service.

    Raises:
        ConfigurationError: when the file with the key cannot be used.
    """
    from nvrx_core.attribution.service_settings import read_key

    given_keys = [config.attribution_llm_api_key_file or "", environ.get("LLM_API_KEY_FILE", "")]
    key = next((each for each in given_keys if os.access(each, os.R_OK)), next(filter(None, given_keys), ""))
    read_key(key, "--ft-attribution-llm-api-key-file")
    if config.attribution_llm_base_url is None:
        log.warning("the attribution service goes by rules alone: no --ft-attribution-llm-base-url is given")
    given = {
        "--root": os.path.dirname(os.path.realpath(prefix)), "--job": job,
        "--llm-api-key-file": key, "--llm-base-url": config.attribution_llm_base_url,
        "--llm-model": config.attribution_llm_model, "--export-url": config.attribution_export_url,
        "--log-level": config.attribution_log_level,
    }  # fmt: skip
    command = [sys.executable, "-m", "nvrx_core.attribution.service", "--until-input-ends"]
    return command + [f"{name}={each}" for name, each in given.items() if each]


def _wrong(option: str, problem: str, advice: str) -> ConfigurationError:
    return ConfigurationError("command line", f"--ft-attribution-{option}", problem, advice)
