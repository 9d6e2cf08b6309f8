"""Messages between rank, rank monitor and launcher: one JSON object a packet, over a Unix socket.

Packets keep their boundaries (SOCK_SEQPACKET, unix(7)), so there are no partial messages. A listener accepts only
processes of its own user (SO_PEERCRED), and closes the connection of one that sends a malformed message. A message may
carry descriptors.
"""

from __future__ import annotations

import array
import base64
import hashlib
import json
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from nvrx_core.errors import ConfigurationError
from nvrx_core.events.log import boot_id
from nvrx_core.parsing import parse_object
from nvrx_core.process.waiting import readable
from nvrx_core.settings import environment

__all__ = [
    "MAX_MESSAGE",
    "Clients",
    "Connection",
    "Listener",
    "WireError",
    "close_all",
    "connect",
    "host_tag",
    "private_directory",
]

MAX_MESSAGE: Final = 1 << 16
MAX_DESCRIPTORS: Final = 4
MAX_PATH: Final = 107
"""Bytes of a socket's path, unix(7)."""
MAX_FOLDER: Final = MAX_PATH - len("/launcher-12345678/rank-999.socket")
"""Bytes of the path of the folder for all sockets of a user."""
BACKLOG: Final = 64
_CREDENTIALS: Final = struct.Struct("iII")
_TIMEVAL: Final = struct.Struct("@ll")
Request = TypeVar("Request")


class WireError(ConnectionError):
    """A malformed message, or a closed connection."""


MALFORMED: Final = (WireError, KeyError, ValueError, TypeError)
"""What the reading of a message raises."""


@dataclass(frozen=True)
class Peer:
    """The process at the other end: its pid and user, from the kernel."""

    pid: int
    uid: int


class Connection:
    """One end of a connection.

    Args:
        channel: the socket, which becomes the connection's own.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._channel.fileno()

    def peer(self) -> Peer:
        """Return who connected, or listened."""
        credentials = self._channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        return Peer(pid, uid)

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message, and copies of descriptors.

        Raises:
            WireError: when the connection is closed, or the peer does not read.
        """
        packet = json.dumps(message).encode()
        if len(packet) > MAX_MESSAGE:
            raise WireError(f"a message of {len(packet)} bytes; at most {MAX_MESSAGE} are allowed")
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._channel.sendmsg([packet], ancillary)
        except OSError as error:
            raise WireError(f"cannot send to {self._name()}: {error}") from None

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Receive a message and its descriptors, which the caller must close.

        Raises:
            WireError: when the connection is closed, the message is late, or it is malformed.
        """
        try:
            packet, descriptors, flags, _ = socket.recv_fds(
                self._channel, MAX_MESSAGE, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise WireError(f"no answer from {self._name()}: {error}") from None
        try:
            if not packet:
                raise WireError(f"{self._name()} has closed the connection")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise WireError(f"a message from {self._name()} is longer than {MAX_MESSAGE} bytes")
            return parse_object(packet), descriptors
        except (ValueError, WireError) as error:
            close_all(descriptors)
            raise error if isinstance(error, WireError) else WireError(f"from {self._name()}: {error}") from None

    def has_message(self) -> bool:
        """Whether there is a message, or the end of the connection, to be received now."""
        return bool(readable([self._channel], 0))

    def close(self) -> None:
        """Close it."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _name(self) -> str:
        with suppress(OSError):
            return f"pid {self.peer().pid}"
        return "the other end"


class Listener:
    """A listening socket, in a folder that only this user can enter.

    Args:
        path: its path; the folder is created, with mode 0700, if it does not exist. A socket on which no process
            listens is replaced.

    Raises:
        OSError: when the path is too long, is in use, or cannot be created.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if len(os.fsencode(self.path)) > MAX_PATH:
            raise OSError(f"{self.path}: a socket's path has at most {MAX_PATH} bytes; use a shorter folder")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._replace_dead()
        with ExitStack() as failing:
            self._channel = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            self._channel.bind(os.fspath(self.path))
            self.path.chmod(0o600)  # before it listens: nobody has connected
            self._channel.listen(BACKLOG)
            self._channel.setblocking(False)
            failing.pop_all()

    @classmethod
    def adopt(cls, fd: int, path: str | Path) -> Self:
        """Take over the socket of another process, which listens at `path`."""
        listener = cls.__new__(cls)
        listener.path, listener._channel = Path(path), socket.socket(fileno=fd)
        return listener

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._channel.fileno()

    def accept(self) -> Connection | None:
        """Return the next connection of a process of this user; None when there is none."""
        try:
            channel, _ = self._channel.accept()
        except OSError:  # it was closed meanwhile, or there are no more descriptors
            return None
        channel.setblocking(False)
        connection = Connection(channel)
        if connection.peer().uid not in (os.geteuid(), 0):
            connection.close()
            return None
        return connection

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        self._channel.close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _replace_dead(self) -> None:
        """Remove the socket of a process that has exited.

        Raises:
            OSError: when a process listens there, or it is no socket.
        """
        if not self.path.exists():
            return
        if not self.path.is_socket():  # connect(2) refuses it like a socket that nobody listens on
            raise OSError(f"{self.path}: this file is no socket; remove it, or use another path")
        try:
            connect(self.path, within=1.0).close()
        except ConnectionRefusedError:
            self.path.unlink()
            return
        raise OSError(f"{self.path}: another process listens there")


def _ignore(_: int) -> None:
    """Do nothing."""


class Clients(Generic[Request]):
    """Accepts connections and serves them, a message at a time; the caller waits for their descriptors.

    Args:
        listener: the socket that clients connect to.
        read: returns the request of a message. For a malformed one it raises `WireError`, `KeyError`, `ValueError` or
            `TypeError`, which closes the connection.
        answer: handles a request; returns whether its connection is to be closed. A connection to which it cannot send
            (`WireError`) is closed; every other exception of it is the caller's.
        most: the maximum number of connections; the oldest one is closed when there are more.
        opened: called with the descriptor of each new connection.
        closed: called with a descriptor before it is closed.
    """

    def __init__(
        self,
        listener: Listener,
        read: Callable[[dict[str, Any]], Request],
        answer: Callable[[Connection, Request], bool],
        *,
        most: int,
        opened: Callable[[int], object] = _ignore,
        closed: Callable[[int], object] = _ignore,
    ) -> None:
        self._listener, self._read, self._answer, self._most = listener, read, answer, most
        self._opened, self._closed = opened, closed
        self._connections = dict[int, Connection]()

    def __contains__(self, fd: object) -> bool:
        return fd in self._connections

    def fds(self) -> tuple[int, ...]:
        """Return the descriptors of all connections."""
        return tuple(self._connections)

    def has(self, connection: Connection) -> bool:
        """Return whether a connection is still open."""
        return connection in self._connections.values()

    def accept(self) -> bool:
        """Accept a connection; return whether one was waiting."""
        if (connection := self._listener.accept()) is None:
            return False
        while len(self._connections) >= self._most:
            self.drop(next(iter(self._connections)))
        self._connections[connection.fileno()] = connection
        self._opened(connection.fileno())
        return True

    def serve(self, fd: int) -> None:
        """Handle one message, if there is one."""
        connection = self._connections[fd]
        if not connection.has_message():
            return
        try:
            message, descriptors = connection.receive()
            close_all(descriptors)
            request = self._read(message)
        except MALFORMED:
            self.drop(fd)
            return
        try:
            is_over = self._answer(connection, request)
        except WireError:
            is_over = True
        if is_over and self.has(connection):
            self.drop(fd)

    def drop(self, fd: int) -> None:
        """Close a connection."""
        self._closed(fd)
        self._connections.pop(fd).close()

    def close(self) -> None:
        """Close all connections."""
        for fd in self.fds():
            self.drop(fd)


def host_tag() -> str:
    """Return five characters that tell what is made on this host, since its last boot, from what other hosts make.

    The folder of sockets may be on a file system that hosts share, and a process, a lock or a socket of another host
    looks there like one that is gone.
    """
    where = boot_id() or socket.gethostname()
    return base64.urlsafe_b64encode(hashlib.blake2b(where.encode(), digest_size=6).digest()).decode()[:5]


def private_directory() -> Path:
    """Return the folder of this user's sockets; create it where it does not exist.

    Where `NVRX_RUNTIME_DIR` does not name it, the first choice that is short enough and can be made is taken: a
    scheduler may have copied XDG_RUNTIME_DIR from another node.

    Raises:
        ConfigurationError: when NVRX_RUNTIME_DIR is too long.
        OSError: when the folder cannot be made, is another user's, or others can enter it.
    """
    choices = environment.runtime_directories()
    *others, last = [each for each in choices if len(os.fsencode(each)) <= MAX_FOLDER] or [""]
    if not last:
        problem = f"{choices[0]!r} is too long: the paths of sockets below it have at most {MAX_PATH} bytes"
        advice = f"set NVRX_RUNTIME_DIR to a folder of at most {MAX_FOLDER} bytes, such as /tmp/nvrx-{os.geteuid()}"
        raise ConfigurationError("environment", "NVRX_RUNTIME_DIR", problem, advice)
    for each in others:
        with suppress(OSError):
            return _private(Path(each))
    return _private(Path(last))


def _private(folder: Path) -> Path:
    """Make a folder that only this user can enter, unless it is there.

    Raises:
        OSError: when it cannot be made, is another user's, or others can enter it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        why = f"cannot be made ({error.strerror})"
        raise OSError(f"{folder}: {why}; set NVRX_RUNTIME_DIR to a folder that only this user can enter") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(f"{folder}: not a folder that only this user can enter; set NVRX_RUNTIME_DIR to one")
    if not os.access(folder, os.W_OK):
        raise OSError(f"{folder}: cannot be written to; set NVRX_RUNTIME_DIR to a folder that only this user can enter")
    return folder


def close_all(descriptors: Iterable[int]) -> None:
    """Close the descriptors of a message that are not used."""
    for fd in descriptors:
        os.close(fd)


def connect(path: str | Path, *, within: float) -> Connection:
    """Connect to a listener.

    Args:
        path: its socket.
        within: seconds for each operation on the connection; 0: none of them waits.

    Raises:
        OSError: when no process listens there, or its queue stays full.
    """
    with ExitStack() as failing:
        channel = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        if within > 0:  # with a timeout of Python's, a full queue is an error at once
            channel.settimeout(None)
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(within), int(within % 1 * 1e6)))
        else:
            channel.setblocking(False)
        channel.connect(os.fspath(path))
        channel.settimeout(within)
        failing.pop_all()
    return Connection(channel)
