"""Restarts of real processes: each test plants a fault and asks what is left of the job."""
