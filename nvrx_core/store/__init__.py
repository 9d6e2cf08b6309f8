"""The control store: torch's stores and etcd's, their hosting, and the keys that nvrx uses.

`serve` hosts a store outside the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_core.store.hosting import StoreServer, serve

__all__ = ["StoreServer", "serve"]


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        """Import the module of a name on first access."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from nvrx_core.store import hosting

        return getattr(hosting, name)
