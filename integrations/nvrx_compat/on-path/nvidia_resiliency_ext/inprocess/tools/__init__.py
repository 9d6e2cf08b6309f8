"""nvrx's `inject_fault`, where version 0.4.1 has it."""

from nvidia_resiliency_ext.inprocess.tools import inject_fault

__all__ = ["inject_fault"]
