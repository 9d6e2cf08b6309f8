"""The coordinator's rendezvous as a `RendezvousHandler` of torch elastic, for agents other than this launcher's.

An agent that calls `next_rendezvous` again stops the cycle: all others find a node waiting, stop their workers and come
as well. A node that is lost stops it by its lease. Late nodes are spares: they wait in `next_rendezvous`, and are not
counted as waiting.
"""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Final

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from nvrx_launcher.exit_codes import FAILED
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.joining import Place, join_over_store
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import Decision, MessageKind, NodeDescription, Verdict
from nvrx_launcher.rendezvous.ports import free_port
from nvrx_launcher.rendezvous.progress import NodeProgress
from nvrx_launcher.rendezvous.rules import Rules
from nvrx_launcher.rendezvous_settings import RendezvousSettings

__all__ = ["CoordinatedRendezvous"]

DEFAULT_PORT: Final = 29400
ENDS_WITHIN: Final = 20.0


class CoordinatedRendezvous(RendezvousHandler):
    """A node's part in a rendezvous; its event loop runs in a thread.

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
            last_call=settings.last_call, join_timeout=settings.join_timeout,
        )  # fmt: skip
        place = Place(
            backend, parameters.run_id, parameters.run_id, _endpoint(parameters.endpoint), parameters.endpoint,
            parameters.local_addr, settings,
        )  # fmt: skip
        self._loop, self._cleanup, self._answers = EventLoop(), ExitStack(), SimpleQueue[Decision | Exception]()
        self._cleanup.callback(self._loop.close)
        self._mailbox, self._ended = Mailbox(self._loop), False
        self._coordination = join_over_store(
            place, (rules, self._describe), self._loop, cleanup=self._cleanup, node=self
        )
        self._node, self._cycle, self._is_waiting, self._must_restart = -1, -1, False, False
        self._end: Exception | None = None
        self._held: dist.Store | None = None
        self._thread = threading.Thread(target=self._run, name="nvrx-rendezvous-loop", daemon=True)
        self._thread.start()

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return str(self._parameters.backend)

    def get_run_id(self) -> str:
        """Return the job's name."""
        return str(self._parameters.run_id)

    @property
    def use_agent_store(self) -> bool:
        """Return False: each cycle's workers have a store of their own, so that keys of a failed one disturb nobody."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Take part in the next cycle; as a spare, wait for a place.

        Raises:
            RendezvousTimeoutError: when too few nodes have come.
            RendezvousClosedError: when the job is over.
            RendezvousConnectionError: when the store is lost.
        """
        self._mailbox.post(self._take_part)
        answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        rank = [member.node for member in answer.members].index(self._node)
        self._held = self._store()  # a store that is written in Python ends with its last reference in Python
        store = dist.PrefixStore(f"nvrx-rendezvous/{self.get_run_id()}/cycle/{answer.cycle}", self._held)
        workers_meet = RendezvousStoreInfo(answer.master_addr, answer.master_port)
        return RendezvousInfo(store, rank, len(answer.members), workers_meet)

    def num_nodes_waiting(self) -> int:
        """Return whether the workers are to be stopped: another node has begun anew, or is lost.

        Raises:
            RendezvousConnectionError: when the store is lost.
        """
        if isinstance(self._end, RendezvousConnectionError):
            raise self._end
        return int(self._must_restart)

    def is_closed(self) -> bool:
        """Return whether the job is over."""
        return self._end is not None

    def set_closed(self) -> None:
        """End the job, for all nodes."""
        self._mailbox.post(lambda: self._coordination.tell(MessageKind.STOP, self._cycle, "the rendezvous is closed"))

    def shutdown(self) -> bool:
        """Leave the job, and give back what is held; for the others this node is lost."""
        if self._thread.is_alive():
            self._mailbox.post(self._leave)
            self._thread.join(ENDS_WITHIN)
        return not self._thread.is_alive()

    def _store(self) -> dist.Store:
        store = self._coordination.open_store()
        assert isinstance(store, dist.Store)
        return store

    def _describe(self, address: str) -> NodeDescription:
        return NodeDescription(socket.gethostname(), address, free_port(), 1)

    def _run(self) -> None:
        with self._cleanup:
            self._coordination.join()
            while not self._ended:
                self._loop.turn(self._coordination.deadline)
                self._coordination.tick()
        self._coordination.release()

    def _leave(self) -> None:
        self._coordination.tell(MessageKind.LEFT, self._cycle, "its agent has left")
        self._over(RendezvousClosedError("this node has left"))
        self._ended = True

    def _take_part(self) -> None:
        if self._end is not None:
            self._answers.put(self._end)
            return
        self._is_waiting, self._must_restart = True, False
        if self._node >= 0:
            self._coordination.tell(MessageKind.READY, self._cycle, "")

    def progress(self) -> NodeProgress:
        """Return that nothing is known of the workers: they are the agent's."""
        return self._cycle, ()

    def joined(self, node: int) -> None:
        """Take this node's number."""
        self._node = node
        if self._is_waiting:
            self._coordination.tell(MessageKind.READY, self._cycle, "")

    def decided(self, decision: Decision) -> None:
        """Take a decision for all nodes."""
        match decision.verdict:
            case Verdict.RUN if self._is_waiting and self._node in {member.node for member in decision.members}:
                self._is_waiting, self._must_restart, self._cycle = False, False, decision.cycle
                self._answers.put(decision)
            case Verdict.STOP if decision.cycle == self._cycle:
                self._must_restart = not self._is_waiting
            case Verdict.LOST if decision.node == self._node:
                self._taken_for_lost()
            case Verdict.END:
                is_late = self._is_waiting and decision.code == FAILED
                self._over((RendezvousTimeoutError if is_late else RendezvousClosedError)(decision.reason))
            case _:
                pass

    def cut_off(self, reason: str) -> None:
        """Have the agent stop its workers, as far as it asks: the others take this node for lost."""
        self._coordination.tell(MessageKind.LEFT, self._cycle, reason)
        self._node, self._must_restart = -1, not self._is_waiting
        self._coordination.join_again()

    def coordinator_lost(self, _: int, reason: str) -> None:
        """Take the loss of the store."""
        self._over(RendezvousConnectionError(reason))

    def _taken_for_lost(self) -> None:
        if self._is_waiting:
            self._coordination.tell(MessageKind.READY, self._cycle, "")
        self._must_restart = not self._is_waiting

    def _over(self, error: Exception) -> None:
        self._end = self._end or error
        if self._is_waiting:
            self._is_waiting = False
            self._answers.put(self._end)


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else (text or "localhost", DEFAULT_PORT)
