"""The stores that a job may keep its state in, other than torch's TCPStore."""

from __future__ import annotations

from typing import Any

__all__ = ["store_settings"]


def store_settings(kept_in: str) -> dict[str, Any]:
    """The wrapper's parameters for `etcd ENDPOINTS`, `file PATH`, or "" for the default."""
    from datetime import timedelta

    from nvrx_core.inprocess import store

    kind, _, where = kept_in.partition(" ")
    match kind:
        case "etcd":
            return {
                "store_factory": store.EtcdStore,
                "store_kwargs": {"endpoints": where, "lost_after": timedelta(seconds=3)},
            }
        case "file":
            return {"store_factory": store.FileStore, "store_kwargs": {"file_name": where}}
    return {}
