"""The function under test is imported by name in other processes; what cannot be is refused with what to write."""

from __future__ import annotations

import functools
import re

import pytest
from nvrx_lightning.verification.errors import VerificationError
from nvrx_lightning.verification.settings import VerifySettings
from nvrx_lightning.verification.source import Source


def make() -> None: ...


def test_a_function_of_a_module_is_found_again():
    assert Source.of(functools.reduce).load() is functools.reduce


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "verify() needs the function that makes a Trainer and a module, not 3: write `def make(): return trainer"),
        (lambda: None, "write it as a `def` at the top level of a file"),
        (functools.partial(make), "write it as a `def` at the top level of a file"),
    ],
)
def test_what_other_processes_cannot_import_is_refused(given, text):
    with pytest.raises(VerificationError, match=re.escape(text)):
        Source.of(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("train.py", "names no function: write path/to/file.py:make or package.module:make"),
        ("gone.py:make", "there is no file gone.py"),
        ("gone.module:make", "there is no module gone.module"),
        ("functools:gone", "functools has no function gone at its top level"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(given, text):
    with pytest.raises(VerificationError, match=re.escape(text)):
        Source.parse(given).load()


def test_a_function_of_a_file_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "nvrx_a_training.py"
    file.write_text("class Jobs:\n    @staticmethod\n    def make(): return 7\n")
    assert Source.parse(f"{file}:Jobs.make").load()() == 7


def test_a_setting_that_is_not_positive_is_refused():
    with pytest.raises(VerificationError, match="epochs=0: write a number above 0"):
        VerifySettings(epochs=0)
