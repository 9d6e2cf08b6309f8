"""The command that prints the settings: each value and where it comes from, or one line and exit code 2."""

import pytest

from nvrx_core.fault_tolerance.explain import main


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance:\n  safety_factor: 3\n  log_level: ERROR\n")
    monkeypatch.setenv("NVRX_FT_LOG_LEVEL", "WARN")
    monkeypatch.setenv("NVRX_FT_CFG_PATH", str(path))
    return path


def test_each_value_is_printed_with_where_it_comes_from(file, capsys):
    assert main(["--ft-enable-nic-healthcheck", "yes", "--ft-rank-heartbeat-timeout=none"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["safety_factor", "3.0", f"{file}:2"] in printed
    assert ["log_level", "WARNING", "NVRX_FT_LOG_LEVEL"] in printed
    assert ["rank_heartbeat_timeout", "none", "--ft-rank-heartbeat-timeout"] in printed
    assert ["initial_rank_heartbeat_timeout", "3600.0", "default"] in printed


def test_a_wrong_setting_is_one_line_and_exit_code_2(file, capsys):
    file.write_text("fault_tolerance:\n  safety_factor: -3\n")
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"{file}:2: safety_factor: -3 is not allowed, it must be greater than 1")
    assert main(["--ft-cfg-pth=x"]) == 2
    assert "did you mean --ft-cfg-path?" in capsys.readouterr().err


def test_an_argument_that_is_no_flag_is_refused(file, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train.py"])
    assert "unknown argument train.py" in capsys.readouterr().err
