"""Tests of the names: in this process, and gone after each test."""

import sys
from collections.abc import Iterator

import pytest

from nvrx_core import compatible_names


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, in which neither package is on the path or imported."""
    forget()
    folder = compatible_names.folder()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != folder])


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == compatible_names.PACKAGE]:
        del sys.modules[name]
