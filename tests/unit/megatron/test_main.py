"""`python -m nvrx_megatron`: how it is called, and how it is not."""

from __future__ import annotations

import pytest
from nvrx_megatron.__main__ import main


def test_help_names_the_script_and_the_launcher(capsys):
    assert main(["--help"]) == 0
    assert "ft_launcher [OPTIONS] -m nvrx_megatron SCRIPT" in capsys.readouterr().out


def test_no_script_is_a_usage_error(capsys):
    assert main([]) == 2
    assert "usage: python -m nvrx_megatron SCRIPT" in capsys.readouterr().err


def test_a_script_that_is_not_there_is_named(capsys, tmp_path):
    assert main([str(tmp_path / "pretrain_gpt.py")]) == 2
    assert f"there is no script {tmp_path / 'pretrain_gpt.py'}" in capsys.readouterr().err


def test_a_script_outside_of_a_checkout_says_what_is_missing(tmp_path, monkeypatch):
    from nvrx_megatron import script

    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=rf"no megatron.training in {tmp_path} .*Megatron-LM checkout"):
        script._require_megatron(str(tmp_path / "pretrain_gpt.py"))
