"""Settings of a class: from code, or from flags, variables and files in this precedence; where each comes from."""

import argparse
import copy
import pickle
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.base import Settings
from nvrx_core.settings.forms import BOOLEAN, INTEGER, SECONDS, SECTION_TIMEOUTS
from nvrx_core.settings.parameter import POSITIVE, at_least, setting
from nvrx_core.settings.spelling import Spelling


@dataclass
class Example(Settings):
    spelling: ClassVar[Spelling] = Spelling(section="example", prefix="ex")

    timeout: float | None = setting(60.0, SECONDS, "How long; 100 % of it.", rule=POSITIVE, optional=True)
    retries: int = setting(3, INTEGER, "How often.", rule=at_least(0), aliases=("attempts",))
    sections: dict[str, float | None] = setting({}, SECTION_TIMEOUTS, "How long each.")
    later: bool = setting(False, BOOLEAN, "What is to come.")

    @property
    def doubled(self):
        return self.retries * 2


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ex.yaml"
    path.write_text("example:\n  timeout: 1\n  retries: 1\n  sections: {step: 1}\n")
    return path


def parsed(*flags):
    parser = argparse.ArgumentParser(exit_on_error=False)
    Example.add_arguments(parser)
    return parser.parse_args(flags)


def test_defaults_come_without_any_source():
    assert Example() == Example.from_kwargs() == Example.from_environment({})
    assert set(Example().explain().values()) == {"default"}


def test_a_default_is_not_shared():
    Example().sections["step"] = 5.0
    assert Example().sections == {}


def test_a_flag_wins_over_a_variable_a_variable_over_the_file(file):
    variables = {"NVRX_EX_RETRIES": "2", "NVRX_EX_TIMEOUT": "2"}
    made = Example.from_args(parsed("--ex-cfg-path", str(file), "--ex-timeout", "none"), environ=variables)
    assert (made.timeout, made.retries, made.sections, made.later) == (None, 2, {"step": 1.0}, False)
    assert made.explain() == {
        "timeout": "--ex-timeout", "retries": "NVRX_EX_RETRIES", "sections": f"{file}:4", "later": "default",
    }  # fmt: skip


def test_variables_win_over_a_file_that_code_names(file):
    assert Example.from_yaml_file(file, environ={"NVRX_EX_RETRIES": "2"}).retries == 2
    assert Example.from_yaml_file(file, environ={}).retries == 1


def test_the_variables_of_the_process_count_by_default(file, monkeypatch):
    monkeypatch.setenv("NVRX_EX_RETRIES", "7")
    assert Example.from_yaml_file(file).retries == Example.from_environment().retries == 7
    assert Example.from_args(parsed()).retries == 7
    assert Example.from_kwargs().retries == Example().retries == 3


def test_an_empty_variable_is_not_set():
    assert Example.from_environment({"NVRX_EX_TIMEOUT": ""}).timeout == 60.0


def test_a_variable_may_name_the_file(file, tmp_path):
    assert Example.from_environment({"NVRX_EX_CFG_PATH": str(file)}).explain()["timeout"] == f"{file}:2"
    missing = {"NVRX_EX_CFG_PATH": str(tmp_path / "none.yaml")}
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Example.from_environment(missing)
    assert Example.from_environment({**missing, "NVRX_EX_IGNORE_MISSING_CFG": "yes"}) == Example()


def test_the_flag_that_names_the_file_wins_over_the_variable(file):
    made = Example.from_args(parsed(f"--fault_tol_cfg_path={file}"), environ={"NVRX_EX_CFG_PATH": "/nowhere"})
    assert made.retries == 1


def test_a_missing_file_may_be_ignored(tmp_path):
    path = tmp_path / "none.yaml"
    assert Example.from_yaml_file(path, ignore_missing=True, environ={}) == Example()
    args = parsed("--ex-cfg-path", str(path), "--ignore-missing-fault-tol-cfg")
    assert Example.from_args(args, environ={}) == Example()


def test_a_namespace_of_another_parser_gives_what_it_has():
    assert Example.from_args(argparse.Namespace(ex_retries=1, other=2), environ={}).retries == 1


def test_the_last_spelling_of_a_flag_counts():
    args = parsed("--ex-retries", "1", "--ex_param_attempts", "2")
    assert Example.from_args(args, environ={}).retries == 2


def test_the_help_has_each_flag_once_with_its_default():
    parser = argparse.ArgumentParser()
    Example.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    assert "--ex-timeout SECONDS How long; 100 % of it. Default: 60.0." in text
    assert "--ex-later BOOL What is to come. Default: false." in text
    assert "--ex_timeout" not in text
    assert "param" not in text


def test_a_flag_that_is_left_over_is_refused_by_the_one_that_was_meant():
    Example.refuse_unknown_flags(["train.py", "--lr", "--example", "-x"])
    with pytest.raises(ConfigurationError, match=r"--ex-retry: unknown flag.*did you mean --ex-retries\?"):
        Example.refuse_unknown_flags(["--lr", "--ex-retry=5"])
    with pytest.raises(ConfigurationError, match=r"--ex_colour: unknown flag.*see --help"):
        Example.refuse_unknown_flags(["--ex_colour"])


def test_a_value_may_be_assigned_and_is_checked_then():
    made = Example()
    made.timeout = "none"
    made.retries = "4"
    assert (made.timeout, made.retries, made.doubled) == (None, 4, 8)
    assert made.explain()["retries"] == "code"
    with pytest.raises(ConfigurationError, match="Example: retries: -1 is not allowed, it must be at least 0"):
        made.retries = -1
    assert made.retries == 4


def test_a_name_that_does_not_exist_cannot_be_set():
    made = Example()
    with pytest.raises(ConfigurationError, match=r"^Example: retrys: unknown key.*did you mean retries\?$"):
        Example(retrys=2)
    with pytest.raises(ConfigurationError, match=r"retrys: unknown key.*did you mean retries\?"):
        made.retrys = 4
    assert made == Example()


def test_the_entries_of_a_mapping_are_checked_when_asked():
    made = Example(sections={"step": 1})
    made.check()
    made.sections["step"] = -1
    with pytest.raises(ConfigurationError, match=r"Example: sections\.step: -1 is not allowed, it must be positive"):
        made.check()


def test_a_check_reads_what_was_put_into_a_mapping():
    made = Example()
    made.sections["step"] = "5"
    made.check()
    assert made.sections == {"step": 5.0}
    assert made.explain()["retries"] == "default"


def test_values_as_json_has_them_can_be_read_again():
    made = Example(timeout=None, sections={"step": None}, retries=1)
    assert made.to_dict() == {"timeout": None, "retries": 1, "sections": {"step": None}, "later": False}
    assert Example.from_dict(made.to_dict()) == Example.from_kwargs(**made.to_dict()) == made
    with pytest.raises(ConfigurationError, match="Example: newer: unknown key"):
        Example.from_dict({"newer": 1})


def test_copies_are_equal_and_know_where_their_values_come_from(file):
    made = Example.from_yaml_file(file, environ={})
    for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert copied == made
        assert copied.explain() == made.explain()
    assert replace(made, retries=9).retries == 9


def test_unknown_names_are_ignored_where_code_asks_for_it(tmp_path):
    made = Example.from_kwargs(ignore_not_recognized=True, retries=4, retires=5)
    assert made.retries == 4
    with pytest.raises(ConfigurationError, match="retires"):
        Example.from_kwargs(retries=4, retires=5)
    path = tmp_path / "example.yaml"
    path.write_text("example:\n  retries: 4\n  retires: 5\n")
    assert Example.from_yaml_file(path, ignore_not_recognized=True, environ={}).retries == 4
    with pytest.raises(ConfigurationError, match="retires"):
        Example.from_yaml_file(path, environ={})
