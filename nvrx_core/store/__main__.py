"""Host a control store outside the ranks: `nvrx-store --host HOST --port PORT`, or `python -m nvrx_core.store`.

Prints the endpoint as `host:port`, to be given to the ranks as NVRX_STORE_ENDPOINT, and serves until SIGTERM or SIGINT.
It is independent of the death of any rank.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

__all__ = ["main"]

_ENDS: Final = (signal.SIGTERM, signal.SIGINT)
"""End the service, but for those that whoever has started it ignores, as a shell does for a job in the background."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal arrives; return 0 then, 2 when the port cannot be used.

    Until the store serves, the signals have their default action: it ends the process at any moment, also within an
    import, and without a traceback.
    """
    ends = [signum for signum in _ENDS if signal.getsignal(signum) is not signal.SIG_IGN]
    for signum in ends:
        signal.signal(signum, signal.SIG_DFL)
    parser = argparse.ArgumentParser("nvrx-store", description="Host a control store outside the ranks.")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address of this machine to listen on and to print (default %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (default %(default)s)")
    options = parser.parse_args(argv)
    if not 0 <= options.port < 65536:
        parser.error(f"--port {options.port}: not in the range 0 to 65535")
    if not options.host:
        parser.error("--host is empty: give an address of this machine, or 0.0.0.0 for all that it has")
    return _serve(options.host, options.port, ends)


def _serve(host: str, port: int, ends: Sequence[signal.Signals]) -> int:
    from nvrx_core.store.endpoint import StoreConnectionError, listen
    from nvrx_core.store.hosting import serve_on

    try:
        listener = listen(host, port, name="--host")
        import torch.distributed  # noqa: F401 (takes seconds; the signals still end the process)

        with _end_of_service(ends) as end, serve_on(listener, host) as server:
            print(server.endpoint, flush=True)
            end.recv(1)
    except StoreConnectionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


@contextmanager
def _end_of_service(ends: Sequence[signal.Signals]) -> Iterator[socket.socket]:
    """Yield a file that becomes readable when a signal arrives, whichever thread the kernel delivers it to."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        signal.set_wakeup_fd(writer.fileno())
        for signum in ends:
            signal.signal(signum, lambda *_: None)
        yield reader
        signal.set_wakeup_fd(-1)


if __name__ == "__main__":
    sys.exit(main())
