"""Interruption of the main thread inside the user's function: when, where, and how."""
