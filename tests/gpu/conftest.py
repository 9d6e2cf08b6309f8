"""The jobs of `tests/process`, on CUDA devices."""

from __future__ import annotations

import pathlib

import pytest

from tests.process.conftest import launch, launcher, prepare, pytest_runtest_makereport, template

__all__ = ["launch", "launcher", "prepare", "pytest_runtest_makereport", "template"]

DEVICE = pathlib.Path("/dev/nvidiactl")


@pytest.fixture(autouse=True)
def device() -> None:
    """Skip without a device; this process does not use it, as the ranks are forked."""
    if not DEVICE.exists():
        pytest.skip("no CUDA device")
