"""What a script computes at each start is computed once in a process."""

from __future__ import annotations

import sys
import types

import pytest
from nvrx_megatron.once import compute_once


class Configuration:
    pass


@pytest.fixture
def read(monkeypatch):
    """The classes whose texts have been read."""
    found = []

    class ArgumentGroupFactory:
        def _get_field_docstrings(self, src_cfg_class):
            found.append(src_cfg_class)
            return {"seed": "text"}

    module = types.SimpleNamespace(ArgumentGroupFactory=ArgumentGroupFactory)
    monkeypatch.setitem(sys.modules, "megatron.training.argument_utils", module)
    compute_once()
    compute_once()
    return found, ArgumentGroupFactory()


def test_the_texts_of_a_class_are_read_once(read):
    found, factory = read
    texts = factory._get_field_docstrings(Configuration)
    texts["seed"] = "changed by its caller"
    assert factory._get_field_docstrings(Configuration) == {"seed": "text"}
    factory._get_field_docstrings(object)
    assert found == [Configuration, object]


def test_a_library_is_built_until_that_has_succeeded(monkeypatch):
    outcomes = iter([SystemExit(1), None])

    def compile_helpers():
        if (error := next(outcomes)) is not None:
            raise error

    module = types.SimpleNamespace(compile_helpers=compile_helpers)
    monkeypatch.setitem(sys.modules, "megatron.core.datasets.utils", module)
    compute_once()
    with pytest.raises(SystemExit):
        module.compile_helpers()
    for _ in range(3):
        module.compile_helpers()


def test_without_them_nothing_happens(monkeypatch):
    for name in ("megatron.training.argument_utils", "megatron.core.datasets.utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    compute_once()
