"""The installed packages that are the user's: of wrapped functions, and what the process was started with."""

import functools
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from nvrx_core.inprocess import Wrapper
from nvrx_core.process import user_packages


@pytest.fixture(autouse=True)
def noted(monkeypatch):
    monkeypatch.setattr(user_packages, "_noted", set())
    start(monkeypatch)


def start(monkeypatch, file=None, spec=None, **names):
    main = types.ModuleType("__main__")
    main.__dict__.update(names, __file__=file, __spec__=spec)
    monkeypatch.setitem(sys.modules, "__main__", main)


def function_of(module):
    def run():
        """Stand for the user's."""

    run.__module__ = module
    return run


def test_the_package_of_a_wrapped_function():
    Wrapper()(functools.partial(function_of("mytrain.recipe")))
    Wrapper()(function_of("__main__"))
    Wrapper()(function_of("megatron.training.training"))
    user_packages.note(object())
    assert user_packages.user_packages() == {"mytrain"}


def test_the_package_that_is_run_by_its_name(monkeypatch):
    start(monkeypatch, "/venv/lib/python3.11/site-packages/mytrain/cli.py", ModuleSpec("mytrain.cli", None))
    assert user_packages.user_packages() == {"mytrain"}


@pytest.mark.parametrize(("file", "packages"), [("/venv/bin/mytrain", {"mytrain"}), ("/me/bin/train.py", set())])
def test_the_package_whose_command_is_run(monkeypatch, file, packages):
    command = types.SimpleNamespace(callback=function_of("mytrain.cli"))
    start(monkeypatch, file, main=command, sys=sys, torch_function=function_of("torch.nn"))
    assert user_packages.user_packages() == packages


def test_a_process_without_a_script_has_none():
    assert user_packages.user_packages() == frozenset()
