"""nvrx's injection of faults that a job dispatches to itself."""

from nvrx_core.testing.dispatch import (
    Fault,
    clear_workload_exception,
    dispatch_fault_injection,
    maybe_raise_workload_exception,
)
from nvrx_core.testing.random_faults import inject_fault

__all__ = [
    "Fault",
    "clear_workload_exception",
    "dispatch_fault_injection",
    "inject_fault",
    "maybe_raise_workload_exception",
]
