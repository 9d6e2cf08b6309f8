"""The rules of one call, which its flow does not change. Pure."""

from __future__ import annotations

from collections.abc import Callable

from nvrx_core.values import value

__all__ = ["CallRules"]


@value
class CallRules:
    """The rules that are fixed for a call.

    Attributes:
        leader: returns the next rank 0 for a world size and the terminated ranks; None if a rank cannot compute it.
        no_progress_limit: restarts in a row without progress; None for any number.
        meets_on_entry: the process group of iteration 0 also needs a rendezvous that the wrapper hosts.
        hosts_store: the process of this rank hosts the control store.
        store_is_hosted: the process of some rank hosts it.
    """

    leader: Callable[[int, tuple[int, ...]], int | None]
    no_progress_limit: int | None = None
    meets_on_entry: bool = False
    hosts_store: bool = False
    store_is_hosted: bool = False
