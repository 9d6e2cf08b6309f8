"""In-process restart of a fit: teardown between two attempts, and resuming from a checkpoint."""
