"""The store classes: torch's stores, marked as usable by the wrapper.

`EtcdStore` is imported on first access, because only this class needs the extra `etcd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvrx_core.errors import BarrierError, BarrierOverflow, BarrierTimeout
from nvrx_core.store.endpoint import StoreConnectionError
from nvrx_core.store.mixin import StoreMixin, as_client, client_only
from nvrx_core.store.torch_stores import FileStore, TCPStore

if TYPE_CHECKING:
    from nvrx_core.store.etcd_store import EtcdStore

__all__ = [
    "BarrierError", "BarrierOverflow", "BarrierTimeout", "EtcdStore", "FileStore", "StoreConnectionError", "StoreMixin",
    "TCPStore", "as_client", "client_only",
]  # fmt: skip


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name != "EtcdStore":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from nvrx_core.store.etcd_store import EtcdStore
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}: EtcdStore needs the extra: pip install 'nvrx[etcd]'") from error
        return EtcdStore
