"""Faults: their record, the description of an exception, blame attribution, and the retry limit. Pure."""
