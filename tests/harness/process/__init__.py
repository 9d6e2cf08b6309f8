"""Real jobs: processes, stores and networks for tests/process, and the checks of their results."""
