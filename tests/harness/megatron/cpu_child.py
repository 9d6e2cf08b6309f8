"""Imported by multiprocessing's fork server in these tests: its children, which save, have the fake GPU."""

from __future__ import annotations

from tests.harness.megatron.unmodified import fake_device

__all__: list[str] = []

fake_device()
