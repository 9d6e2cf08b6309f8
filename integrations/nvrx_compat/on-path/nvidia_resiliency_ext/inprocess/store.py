"""nvrx's `inprocess.store`."""

from nvrx_core.inprocess.store import (
    BarrierError,
    BarrierOverflow,
    BarrierTimeout,
    FileStore,
    StoreConnectionError,
    StoreMixin,
    TCPStore,
    as_client,
    client_only,
)

__all__ = [
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "FileStore",
    "StoreConnectionError",
    "StoreMixin",
    "TCPStore",
    "as_client",
    "client_only",
]
