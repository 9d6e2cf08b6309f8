"""Simulated jobs: the rank machine in virtual time, the checker of all orders of steps, and the mutants they find."""
