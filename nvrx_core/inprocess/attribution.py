"""The kinds of interruption of a rank, and the record of one, under the names that users import."""

from __future__ import annotations

from nvrx_core.fault.interruption import Interruption, InterruptionRecord, format_interruption_records

__all__ = ["Interruption", "InterruptionRecord", "format_interruption_records"]
