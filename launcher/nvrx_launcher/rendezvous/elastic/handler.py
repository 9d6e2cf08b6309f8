"""The coordinator's rendezvous as a torch elastic `RendezvousHandler`, for agents other than this launcher's.

An agent that calls `next_rendezvous` again ends the cycle: all other agents see a waiting node, stop their workers and
join the next rendezvous. A lost node ends the cycle when its lease expires. Late nodes are spares: they block in
`next_rendezvous` and are not counted as waiting.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from nvrx_core.errors import ConfigurationError
from nvrx_core.parsing import parse_endpoint
from nvrx_core.process.helper_thread import HelperThread
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.elastic.participant import Participant
from nvrx_launcher.rendezvous.joining import RendezvousConfig, join_over_store
from nvrx_launcher.rendezvous.keys import job_prefix
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.ports import free_port
from nvrx_launcher.rendezvous.restart_budget import PacingRules
from nvrx_launcher.rendezvous_settings import RendezvousSettings

__all__ = ["CoordinatedRendezvous"]

DEFAULT_PORT: Final = 29400
END_TIMEOUT: Final = 20.0


class CoordinatedRendezvous(RendezvousHandler):
    """The rendezvous handler of a node; its event loop runs in a thread.

    Args:
        parameters: torch's; `rdzv_configs` are the keys of `--rdzv-conf`.

    Raises:
        ConfigurationError: when a parameter is wrong.
        StoreConnectionError: when the store cannot be reached in time.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._parameters, backend = parameters, parameters.backend.removeprefix("nvrx-")
        settings = RendezvousSettings.of(
            ",".join(f"{key}={value}" for key, value in parameters.config.items()), backend
        )
        rules = Rules(
            parameters.min_nodes, parameters.max_nodes, 0,
            last_call_timeout=settings.last_call_timeout, join_timeout=settings.join_timeout,
            pacing=PacingRules(backoff=None),  # the agents count and pace the restarts of their workers themselves
        )  # fmt: skip
        rendezvous = RendezvousConfig(
            backend, parameters.run_id, parameters.run_id, _endpoint(parameters.endpoint), parameters.endpoint,
            parameters.local_addr, settings,
        )  # fmt: skip
        self._loop, self._participant, self._ended = EventLoop(), Participant(), False
        with ExitStack() as failing:
            failing.callback(self._loop.close)
            self._mailbox = Mailbox(self._loop)
            self._coordination = join_over_store(
                rendezvous, rules, self._describe, self._loop, cleanup=failing, node=self._participant
            )
            self._cleanup = failing.pop_all()
        self._participant.coordination = self._coordination
        self._held: dist.Store | None = None
        self._thread = HelperThread(self._run, name="nvrx-rendezvous-loop", failed=self._participant.fail)
        self._thread.start()

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return str(self._parameters.backend)

    def get_run_id(self) -> str:
        """Return the job's name."""
        return str(self._parameters.run_id)

    @property
    def use_agent_store(self) -> bool:
        """Return False: the workers of each cycle have their own store, so that no keys of a failed cycle remain."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next cycle; a spare blocks until it is given a rank.

        Raises:
            RendezvousTimeoutError: when too few nodes have joined.
            RendezvousClosedError: when the job is over.
            RendezvousConnectionError: when the store is lost.
        """
        if self._participant.end is not None:
            raise self._participant.end
        self._mailbox.post(self._participant.take_part)
        answer = self._participant.answers.get()
        if isinstance(answer, Exception):
            raise answer
        rank = [member.node for member in answer.members].index(self._participant.node)
        held = self._coordination.open_store()
        assert isinstance(held, dist.Store)
        self._held = held  # a store implemented in Python is closed with its last Python reference
        store = dist.PrefixStore(f"{job_prefix(self.get_run_id())}cycle/{answer.cycle}", self._held)
        workers_meet = RendezvousStoreInfo(answer.master_addr, answer.master_port)
        return RendezvousInfo(store, rank, len(answer.members), workers_meet)

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait; above 0 the workers must stop, because another node rejoined or is lost.

        Raises:
            RendezvousConnectionError: when the store is lost.
        """
        if isinstance(self._participant.end, RendezvousConnectionError):
            raise self._participant.end
        return int(self._participant.must_restart)

    def is_closed(self) -> bool:
        """Return whether the job is over."""
        return self._participant.end is not None

    def set_closed(self) -> None:
        """End the job, for all nodes."""
        self._mailbox.post(self._participant.close)

    def shutdown(self) -> bool:
        """Leave the job and release all resources; the other nodes consider this node lost."""
        if self._thread.is_alive():
            self._mailbox.post(self._leave)
            self._thread.join(END_TIMEOUT)
        return not self._thread.is_alive()

    def _describe(self, address: str) -> NodeDescription:
        return NodeDescription(socket.gethostname(), address, free_port(), 1)

    def _run(self) -> None:
        try:
            with self._cleanup:
                self._coordination.join()
                while not self._ended:
                    now = self._loop.turn(self._coordination.deadline)
                    self._coordination.tick(now=now)
        finally:
            self._coordination.release()

    def _leave(self) -> None:
        self._participant.leave()
        self._ended = True


def _endpoint(text: str) -> tuple[str, int]:
    try:
        return parse_endpoint(text or "localhost", DEFAULT_PORT)
    except ValueError as error:
        raise ConfigurationError("rendezvous", "endpoint", str(error), "write it as in node0:29400") from None
