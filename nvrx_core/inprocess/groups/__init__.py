"""The process groups of the user's function: observation, abort and cleanup."""
