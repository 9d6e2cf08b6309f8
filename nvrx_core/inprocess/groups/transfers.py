"""Tensors and objects from one rank to another: a restart ends such a transfer, and so does a rank that hangs in it.

How long one takes depends on what it moves, so no timeout applies to it. Instead, bytes have to move: a rank that waits
looks from time to time whether any rank has sent or received a part of a tensor since. It may wait for one that is
still busy with a third one, so the ranks tell each other of that in the store of the iteration.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist

from nvrx_core.inprocess.groups.blocked_read import InterruptibleCall

__all__ = ["Movement", "Transfers"]

_PART: Final = 16 << 20
"""Bytes that are sent at a time: in a network that moves them, at any speed, that is a matter of seconds."""
_ON_THE_WAY: Final = 256 << 20
"""Bytes of the tensors that are sent or received at a time."""
_LOOKS: Final = 8
"""How often in its patience a rank looks whether anything moves: that it looks shows that it lives, and one that was
paused itself has not looked."""
_KEY: Final = "nvrx/transferred"


class Movement:
    """Whether the ranks of an iteration still move anything.

    Args:
        store: returns the store of the iteration; it is called when a wait is long.
        patience: seconds without a part of a tensor on any rank after which a wait ends, and a little more.
    """

    def __init__(self, store: Callable[[], dist.Store], patience: float) -> None:
        self._store, self._patience = store, min(patience, threading.TIMEOUT_MAX)
        self._moved, self._told, self._looked_at = 0, 0, time.monotonic()

    def move(self) -> None:
        """Count a part that this rank has sent or received."""
        self._moved += 1

    def wait(self, call: Callable[[], object]) -> None:
        """Wait until a call has returned, which may be for other ranks; a signal ends the wait.

        Raises:
            TimeoutError: when no rank has moved anything for too long.
            BaseException: the exception of the call.
        """
        waiting = InterruptibleCall(call)
        seen, quiet = (-1, -1), 0
        while not waiting.done.acquire(timeout=self._patience / _LOOKS):
            since = self._look()
            seen, quiet = since, (quiet + 1 if since == seen else 0)
            if quiet >= _LOOKS:
                raise TimeoutError(
                    f"no rank has sent or received anything for {self._patience:g} s, while state is transferred after "
                    "a fault: a rank hangs"
                )
        waiting.outcome()
        if time.monotonic() >= self._looked_at + self._patience / _LOOKS:  # others wait for what has many short waits
            self._look()

    def _look(self) -> tuple[int, int]:
        """Return how much this rank has moved, and how often any has told that it has moved something."""
        moved, self._looked_at = self._moved, time.monotonic()
        news, self._told = int(moved != self._told), moved
        return moved, self._store().add(_KEY, news)


class Transfers:
    """Transfers with another rank, which all begin at once: one by one, the ranks would wait for each other.

    Both ranks have the same order, so it does not matter how many of them either has begun.

    Args:
        peer: the other rank.
        movement: of the iteration.
    """

    def __init__(self, peer: int, movement: Movement) -> None:
        self._peer, self._movement = peer, movement
        self._begun: list[dist.Work] = []
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._bytes, self._is_on_cpu = 0, True

    def send(self, tensor: torch.Tensor) -> None:
        """Send a tensor; it may be changed after `finish`."""
        for part in _parts(tensor.contiguous()):
            self._add(dist.isend(part, self._peer), part)

    def receive(self, into: torch.Tensor) -> None:
        """Receive a tensor; it is there after `finish`."""
        received = into.contiguous()  # mostly `into` itself
        for part in _parts(received):
            self._add(dist.irecv(part, self._peer), part)
        if received is not into:
            self._copied.append((into, received))

    def send_object(self, sent: Any) -> None:
        """Send what torch can save."""
        file = io.BytesIO()
        torch.save(sent, file)
        text = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
        self.send(torch.tensor([len(text)], device=_device()))
        self.send(text.to(_device()))

    def receive_object(self) -> Any:
        """Receive it, and wait for it."""
        length = torch.zeros(1, dtype=torch.int64, device=_device())
        self.receive(length)
        self.finish()
        text = bytearray(int(length))
        received = torch.frombuffer(text, dtype=torch.uint8)
        moved = received.to(_device())  # on the CPU, the same
        self.receive(moved)
        self.finish()
        if moved is not received:
            received.copy_(moved)
        return torch.load(io.BytesIO(text), weights_only=False)

    def finish(self) -> None:
        """Wait for all that have begun.

        When a connection closes, gloo loses what it could not pass to the kernel: who sends it would wait until the
        timeout of the group. On a GPU, it is this thread's stream that waits.

        Raises:
            TimeoutError: when no rank has moved anything for too long.
        """
        if self._begun and self._is_on_cpu:
            self._movement.wait(self._wait)
        elif self._begun:
            self._wait()
        for into, received in self._copied:
            into.copy_(received)
        self._begun, self._copied, self._bytes = [], [], 0

    def _wait(self) -> None:
        for work in self._begun:
            work.wait()
            self._movement.move()

    def _add(self, work: dist.Work | None, part: torch.Tensor) -> None:
        """Add one; where many bytes are on their way, wait for all."""
        assert work is not None  # both ranks are in the group
        self._begun.append(work)
        self._bytes += part.nbytes
        self._is_on_cpu = part.device.type == "cpu"
        if self._bytes >= _ON_THE_WAY:
            self.finish()


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.numel():
        yield from tensor.view(-1).split(max(1, _PART // tensor.element_size()))


def _device() -> torch.device:
    """Return the device of tensors that the default group can send."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
