"""The rules for an NCCL job's environment: each has its line when it is not met, and only then."""

import logging
from datetime import timedelta

import pytest
import torch

from nvrx_core.inprocess.call import environment_checks
from nvrx_core.inprocess.call.environment_checks import (
    nccl_checks,
    unmet_rules,
    warn_about_environment,
    warn_about_watchdog,
)

GOOD = {"NCCL_NVLS_ENABLE": "0", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "TORCH_CPP_LOG_LEVEL": "error"}
NEW, SHORT = (2, 29, 0), timedelta(seconds=90)


def unmet(*without, nccl=NEW, hard_timeout=SHORT, **variables):
    kept = {name: value for name, value in GOOD.items() if name not in without}
    return unmet_rules(kept | variables, nccl, hard_timeout)


def test_a_good_environment_breaks_no_rule():
    assert unmet() == []
    assert unmet(TORCH_CPP_LOG_LEVEL="FATAL") == []
    assert unmet(SOMETHING="else") == []


@pytest.mark.parametrize(
    ("nccl", "met"),
    [
        ((2, 25, 9), False), ((2, 26, 1), False), ((2, 26, 2), True), ((2, 27, 0), True), ((2, 28, 2), True),
        ((2, 28, 3), False), ((2, 28, 8), False), ((2, 28, 9), True), ((2, 29), True), ((3, 0, 0), True),
    ],
)  # fmt: skip
def test_the_version_of_nccl_must_be_one_that_restarts(nccl, met):
    rules = unmet(nccl=nccl)
    assert len(rules) == (not met)
    assert all(".".join(map(str, nccl)) in rule and "2.26.2" in rule for rule in rules)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("NCCL_NVLS_ENABLE", ["1", "2", ""]),
        ("TORCH_NCCL_RETHROW_CUDA_ERRORS", ["1", ""]),
        ("TORCH_CPP_LOG_LEVEL", ["", "warning", "INFO"]),
    ],
)
def test_a_variable_must_have_its_value(name, wrong):
    for rules in (unmet(name), *(unmet(**{name: value}) for value in wrong)):
        assert len(rules) == 1
        assert name in rules[0]


@pytest.mark.parametrize(("minutes", "met"), [(1, True), (9.99, True), (10, False), (60, False)])
def test_the_hard_timeout_must_be_shorter_than_the_watchdog_of_nccl(minutes, met):
    rules = unmet(hard_timeout=timedelta(minutes=minutes))
    assert len(rules) == (not met)
    assert all("hard_timeout=" in rule and "init_process_group" in rule for rule in rules)


@pytest.mark.parametrize("name", ["TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"])
@pytest.mark.parametrize(("value", "off"), [("0", True), ("1", False), ("3", False), ("", False)])
def test_a_watchdog_that_is_off_may_be_as_quick_as_it_likes(name, value, off, monkeypatch, caplog):
    monkeypatch.setattr(environment_checks, "nccl_variables", lambda: {name: value})
    assert (unmet(hard_timeout=timedelta(minutes=10), **{name: value}) == []) is off
    warn_about_watchdog(SHORT, SHORT)
    assert (caplog.messages == []) is off


@pytest.mark.parametrize(("seconds", "met"), [(30, False), (90, False), (91, True), (1800, True)])
def test_the_watchdog_of_a_group_must_be_slower_than_the_hard_timeout(seconds, met, monkeypatch, caplog):
    monkeypatch.setattr(environment_checks, "nccl_variables", dict)
    warn_about_watchdog(timedelta(seconds=seconds), SHORT)
    assert len(caplog.messages) == (not met)
    assert all(f"timeout={timedelta(seconds=seconds)}" in line and f"={SHORT}:" in line for line in caplog.messages)


def test_each_broken_rule_has_a_line_of_its_own():
    rules = unmet_rules({}, (2, 20, 5), timedelta(hours=1))
    assert len(rules) == len(set(rules)) == 5
    assert all("\n" not in rule for rule in rules)


@pytest.mark.parametrize("nccl", [None, (2, 20, 5), NEW], ids=["no NCCL", "old NCCL", "new NCCL"])
def test_warnings_are_logged_where_torch_has_nccl(nccl, monkeypatch, caplog):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl is not None)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: nccl)
    monkeypatch.setattr(environment_checks, "nccl_variables", lambda: GOOD)
    warn_about_environment(SHORT)
    lines = [(record.name, record.levelno) for record in caplog.records]
    assert lines == ([("nvrx_core.inprocess", logging.WARNING)] if nccl == (2, 20, 5) else [])


def test_the_environment_is_checked_with_the_first_group_only(monkeypatch, caplog):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 20, 5))
    monkeypatch.setattr(environment_checks, "nccl_variables", lambda: GOOD)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it would initialize CUDA"))
    check = nccl_checks(SHORT)
    assert caplog.messages == []
    check(timedelta(minutes=30))
    check(timedelta(seconds=30))
    assert [line.split()[0:2] for line in caplog.messages] == [["NCCL", "2.20.5:"], ["an", "NCCL"]]
