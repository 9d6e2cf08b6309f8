"""What a user needs to test a job against faults; no product code imports it.

`faults` strikes a process with a fault of a named kind, or by a schedule of (initial rank, iteration, step).
"""
