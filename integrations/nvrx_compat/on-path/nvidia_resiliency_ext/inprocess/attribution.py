"""nvrx's `inprocess.attribution`."""

from nvrx_core.inprocess.attribution import Interruption, InterruptionRecord, format_interruption_records

__all__ = ["Interruption", "InterruptionRecord", "format_interruption_records"]
