"""Restarts on CUDA devices, over NCCL; skipped without a device."""
