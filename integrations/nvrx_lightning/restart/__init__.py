"""A fit under the wrapper: what lies between two attempts, and how one goes on from a checkpoint."""
