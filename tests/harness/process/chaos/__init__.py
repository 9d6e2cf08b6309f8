"""Chaos on the launcher as a platform has it: `python -m tests.harness.process.chaos --seed 7`.

A seed draws a job (`schedule.py`): two or three launchers, their rendezvous, their workers; and blows over time.
`job.py` runs it on hosts of its own, with consoles and disks that can fail, and carries the blows out. `oracle.py`
says whether the job went on or ended as documented, in the time that `bounds.py` states, and whether anything is left.
"""
