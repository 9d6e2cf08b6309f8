"""nvrx's `inprocess.nested_restarter`."""

from nvrx_core.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterCallback,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
    NestedRestarterLogger,
)

__all__ = [
    "NestedRestarterAborted",
    "NestedRestarterCallback",
    "NestedRestarterFinalized",
    "NestedRestarterHandlingCompleted",
    "NestedRestarterHandlingStarting",
    "NestedRestarterLogger",
]
