"""Faults: the record of one, what is said of an exception, who is to blame, and when to give up. Pure."""
