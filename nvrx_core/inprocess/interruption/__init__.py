"""Getting the main thread out of the user's function: when, where, and how."""
