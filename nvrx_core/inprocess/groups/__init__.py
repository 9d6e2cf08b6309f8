"""The process groups of the user's function: observed, aborted, and cleared away."""
