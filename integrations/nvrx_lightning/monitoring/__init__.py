"""The parts of the callback: reports to the rank monitor, learned timeouts, and how a fit ended."""
