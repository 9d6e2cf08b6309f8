"""Health checks of a node: GPUs, NVLinks, NICs, storage and the node's own health service.

`runner.py` runs checks, `nvrx-health` by hand; `policy.py` decides what follows from their results.
"""
