"""Host a control store outside the ranks: `nvrx-store --host HOST --port PORT`, or `python -m nvrx_core.store`.

Prints the endpoint as `host:port`, to be given to the ranks as NVRX_STORE_ENDPOINT, and serves until SIGTERM or SIGINT.
No rank's death touches it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from nvrx_core.store.endpoint import StoreConnectionError
from nvrx_core.store.hosting import serve

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it; 0 then, 2 when the port cannot be used."""
    parser = argparse.ArgumentParser("nvrx-store", description="Host a control store outside the ranks.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on and to print (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (default %(default)s)")
    options = parser.parse_args(argv)
    if not 0 <= options.port < 65536:
        parser.error(f"--port {options.port}: not in the range 0 to 65535")
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    return _serve(options.host, options.port, ends)


def _serve(host: str, port: int, ends: set[signal.Signals]) -> int:
    try:
        server = serve(host, port)
    except (StoreConnectionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with server:
        print(server.endpoint, flush=True)
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    sys.exit(main())
