"""What interrupted a rank: the kinds of interruption, and the record of one."""

from __future__ import annotations

from nvrx_core.fault.attribution import Interruption, InterruptionRecord, format_interruption_records

__all__ = ["Interruption", "InterruptionRecord", "format_interruption_records"]
