"""The queue of background saves."""

from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

_async_calls_queue = AsyncCallsQueue()


def maybe_finalize_async_save(blocking=False, terminate=False):
    _async_calls_queue.maybe_finalize_async_calls(blocking)
