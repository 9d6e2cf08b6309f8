"""nvrx's `inject_fault`, at its place in 0.4.1."""

from nvidia_resiliency_ext.inprocess.tools import inject_fault

__all__ = ["inject_fault"]
