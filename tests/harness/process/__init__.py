"""Real jobs: the processes, stores and networks that the tests of tests/process run on, and what they look at."""
