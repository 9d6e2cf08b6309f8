"""How flows are run, with threads and the clock."""
