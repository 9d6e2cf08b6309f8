"""The parts of the launcher's demo.

`training` runs in the ranks, with `faults`. In the demo's own process, which never imports torch, run `plan` (what is
injected, and the timeouts), `runs` (launchers and agents), `run_history` (what happens, by the files that the ranks
write) and `report`. Everything else is of `demo_parts`.
"""
