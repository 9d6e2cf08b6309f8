"""The control flow of a rank, as generators of effects: what is simulated and model-checked is what runs.

A flow yields an effect, which says what its shell must do next, and is resumed with the outcome. In production the
shells are the rank's main thread, its monitor thread and its monitor process; `tests/sim` runs the same generators on
virtual time, and through every interleaving.
"""
