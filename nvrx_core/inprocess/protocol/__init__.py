"""The control flow of a rank, as coroutines over typed ports: what is simulated and model-checked is what runs.

A flow awaits the operations of its ports. In production, `nvrx_core.flow` drives it on the rank's main thread, its
monitor thread or in its monitor process; `tests/sim` drives the same flows in virtual time, and through every
interleaving, with ports of its own.
"""
