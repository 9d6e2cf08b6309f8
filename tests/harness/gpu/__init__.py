"""Ranks on CUDA devices."""
