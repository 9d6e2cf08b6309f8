"""nvrx's injection of faults that a job dispatches to itself."""

from nvrx_core.testing.dispatch import (
    Fault,
    clear_workload_exception,
    dispatch_fault_injection,
    maybe_raise_workload_exception,
)

__all__ = ["Fault", "clear_workload_exception", "dispatch_fault_injection", "maybe_raise_workload_exception"]
