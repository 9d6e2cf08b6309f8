"""The control store: torch's stores and etcd's, where they are hosted, and the keys nvrx keeps in them.

`serve` hosts a store outside the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_core.store.hosting import StoreServer, serve

__all__ = ["StoreServer", "serve"]


def __getattr__(name: str) -> Any:
    """Load the module of a name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nvrx_core.store import hosting

    return getattr(hosting, name)
