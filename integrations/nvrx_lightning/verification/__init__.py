"""Verification of a user's training: the same fit without a fault and with one at each hook, compared bit by bit."""
