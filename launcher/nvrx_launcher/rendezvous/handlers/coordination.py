"""A node's participation in a rendezvous that is not nvrx's: a `RendezvousHandler` of torch elastic, used as it is.

Each cycle is one `next_rendezvous`, as for torch's agent. There is no coordinator, no lease and no spare: a node that
vanishes is detected by the failure of the others' workers, and late nodes by `num_nodes_waiting`, which is polled at
each monitor interval. Handler and store are used by one thread only.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousTimeoutError,
)

from nvrx_core.errors import first_line
from nvrx_core.process.helper_thread import HelperThread
from nvrx_core.process.sockets import bound_reading, tcp_sockets
from nvrx_launcher.exit_codes import FAILED, STORE_LOST
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.coordination import NodeEvents, OwnNodeOnly
from nvrx_launcher.rendezvous.failure_reports import CycleFailures
from nvrx_launcher.rendezvous.handlers.agreement import Agreement, JoiningNode, conclusion
from nvrx_launcher.rendezvous.handlers.cycle import HandlerCycle
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import NODES_WAIT, Decision, DecisionKind, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.restart_budget import BudgetState
from nvrx_launcher.store_host import StoreHost

__all__ = ["HandlerCoordination"]

log = logging.getLogger("nvrx_launcher")
END_TIMEOUT: Final = 5.0
"""The maximum number of seconds for a launcher's last message, and to shut the handler down."""
OVER: Final = (RendezvousClosedError, RendezvousTimeoutError, LookupError, ValueError)
"""The errors of a rendezvous that fails; any other error means that the store is lost."""


OF_ALL_NODES: Final = (MessageKind.DONE, MessageKind.ALL_FAILED, MessageKind.MISUSED)
"""The messages that conclude a cycle when all nodes have sent them."""
BEFORE: Final = Decision(DecisionKind.STOP, -1, "no cycle yet")


class HandlerCoordination(OwnNodeOnly):
    """A node's participation in the cycles of a handler.

    Args:
        handler: the rendezvous.
        mailbox: delivers the results of the thread to the event loop.
        node: handles the events.
        describe: describes this node, anew for each cycle.
        control: the store of in-process restart.
        rules: the limits of restarts.
        interval: seconds between two polls of the store and of the nodes that wait to join.
        close_timeout: seconds that it waits for the others at the end.
    """

    hosts_store, runs_coordinator, coordinator = False, True, -1
    deadline: Final = float("inf")

    def __init__(
        self,
        handler: RendezvousHandler,
        mailbox: Mailbox,
        node: NodeEvents,
        *,
        describe: Callable[[], NodeDescription],
        control: StoreHost,
        rules: Rules,
        interval: float,
        close_timeout: float,
    ) -> None:
        super().__init__(node, mailbox.post)
        self._handler, self._mailbox, self._describe = handler, mailbox, describe
        self.store, self._rules, self._interval = control, rules, interval
        self._close_timeout = close_timeout
        self._requests = SimpleQueue[Callable[[], object] | None]()
        self._cycle: HandlerCycle | None = None
        self._agreed, self._begins_at = Agreement(BEFORE, BudgetState()), 0.0
        self._host, self._ending, self._is_entering = "", threading.Event(), False
        self._thread = HelperThread(
            self._run, name="nvrx-handler",
            failed=lambda error: self._post(node.coordinator_lost, STORE_LOST, str(error)),
        )  # fmt: skip

    def join(self) -> None:
        """Join the job: each node uses its own numbering, in which it is 0."""
        self._thread.start()
        self._node.joined(0)

    def tell(self, kind: MessageKind, cycle: int, reason: str, records: tuple[str, ...] = ()) -> None:
        """Notify the other nodes, or join the next rendezvous; each node gives the verdict by its own records."""
        if kind is MessageKind.READY:
            description = self._describe()
            self._host = description.host
            self._requests.put(partial(self._enter, JoiningNode(description, self.store.own_endpoint())))
        elif kind in (MessageKind.HANG_SUSPECTED, MessageKind.HANG_JUDGED):  # each node judges by its own ranks
            self._post(self._node.decided, Decision(DecisionKind(kind.value), cycle, reason, node=0))
        else:
            self._requests.put(partial(self._say, kind, cycle, f"{self._host}: {reason}"))

    def store_used(self) -> None:
        """Announce to the other nodes that a rank has connected to this launcher's store of in-process restart."""
        endpoint = self.store.own_endpoint()
        self._requests.put(partial(self._use_control, endpoint))

    def failures(self, _: int) -> CycleFailures:
        """Return nothing: no node has the reports of all, so that each gives the verdict by its own."""
        return CycleFailures({})

    def tick(self, *, now: float) -> None:
        """Do nothing: there is no deadline."""

    def close(self, _: EventLoop) -> None:
        """Leave the job; a handler that still waits for other nodes is abandoned."""
        self._ending.set()
        self._requests.put(None)
        if self._thread.ident is not None and not self._is_entering:
            self._thread.join(self._close_timeout + END_TIMEOUT)

    def _is_agreed_end(self) -> bool:
        verdict = None if self._cycle is None else self._cycle.verdict
        return verdict is not None and verdict.decision.kind is DecisionKind.END

    # In the thread

    def _run(self) -> None:
        try:
            while (request := self._next_request()) is not None:
                request()
        except RendezvousGracefulExitError as error:
            self._post(self._node.decided, Decision(DecisionKind.END, self._agreed.decision.cycle + 1, str(error)))
        except OVER as error:
            self._post(self._node.coordinator_lost, FAILED, f"the rendezvous has failed: {first_line(error)}")
        except (RendezvousConnectionError, RuntimeError, OSError) as error:
            self._post(self._node.coordinator_lost, STORE_LOST, f"the rendezvous is lost: {first_line(error)}")
        except Exception as error:  # boundary: a handler of somebody else's
            log.exception("the rendezvous handler has failed")
            self._post(self._node.coordinator_lost, FAILED, f"the rendezvous handler has failed: {first_line(error)}")
        else:
            self._leave()

    def _next_request(self) -> Callable[[], object] | None:
        """Return the next request; poll the cycle at each interval meanwhile."""
        is_running = self._cycle is not None and self._cycle.verdict is None
        try:
            return self._requests.get(timeout=self._interval if is_running else None)
        except Empty:
            return self._look

    def _enter(self, mine: JoiningNode) -> None:
        self._ending.wait(max(0.0, self._begins_at - time.monotonic()))
        if self._ending.is_set() or self._is_agreed_end():  # its workers may be gone before the end is decided
            return
        self._is_entering = True
        info = self._handler.next_rendezvous()
        _bound_requests(info.store)
        self._cycle = HandlerCycle(info.store, info.rank, info.world_size)
        mine = replace(mine, cycle=self._agreed.decision.cycle, budget=self._agreed.budget)
        workers_meet = info.bootstrap_store_info
        port = 0 if workers_meet is None or self._handler.use_agent_store else workers_meet.master_port  # it is in use
        agreed = self._cycle.enter(
            mine, master_addr="" if workers_meet is None else workers_meet.master_addr, master_port=port,
            same_command=self._rules.same_command,
        )  # fmt: skip
        self._take(agreed)
        self._is_entering = False

    def _look(self) -> None:
        assert self._cycle is not None
        if endpoint := self._cycle.control_in_use():
            self._post(self.store.used_by_a_rank, endpoint)
        if found := self._cycle.look():
            self._take(found)
        elif waiting := self._handler.num_nodes_waiting():
            self._conclude(MessageKind.READY, f"{waiting} {NODES_WAIT}")

    def _use_control(self, endpoint: str) -> None:
        if self._cycle is not None:
            self._cycle.use_control(endpoint)

    def _say(self, kind: MessageKind, cycle: int, reason: str) -> None:
        """Handle a message about this node's workers; one about an earlier cycle has no effect."""
        if self._cycle is None or self._cycle.verdict is not None or cycle != self._agreed.decision.cycle:
            return
        if kind in OF_ALL_NODES and self._cycle.count(kind) < self._cycle.size:
            return
        if kind is MessageKind.UNHEALTHY and self._cycle.size - self._cycle.count(kind) >= self._rules.min_nodes:
            return
        self._conclude(kind, reason)

    def _conclude(self, kind: MessageKind, reason: str) -> None:
        assert self._cycle is not None
        self._cycle.conclude(conclusion(kind, reason, self._agreed, rules=self._rules, now=time.monotonic()))
        self._look()

    def _take(self, agreed: Agreement) -> None:
        assert self._cycle is not None
        self._agreed = agreed
        self._begins_at = time.monotonic() + agreed.budget.begins_in
        self._post(self._node.decided, agreed.seen_by(self._cycle.rank))

    def _leave(self) -> None:
        """Shut down the job's rendezvous if all nodes have agreed to end; a node that leaves alone does not."""
        if not self._is_agreed_end():
            return
        assert self._cycle is not None
        try:
            self._cycle.await_others(self._close_timeout)
        except (RuntimeError, OSError, LookupError) as error:
            log.info("not all nodes have confirmed their end within %g s: %s", self._close_timeout, first_line(error))
        self._handler.shutdown()

    def _post(self, call: Callable[..., object], *arguments: object) -> None:
        self._mailbox.post(partial(call, *arguments))


def _bound_requests(store: dist.Store) -> None:
    """Let a request to torch's TCP store fail after the store's timeout, which torch applies to waits for keys only."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        timeout: timedelta = store.timeout  # type: ignore[attr-defined]
        for each in tcp_sockets():
            if each.peer_port == store.port != each.local_port:
                bound_reading(each, max(1, math.ceil(timeout.total_seconds())))
