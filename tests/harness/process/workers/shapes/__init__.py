"""Shapes of user code that are interrupted anywhere: each is a class with one pass of it and a check of its state."""
