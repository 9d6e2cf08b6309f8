"""The report of a verification: its lines, and the exit code for a user's CI."""

from __future__ import annotations

import dataclasses

from nvrx_lightning.verification.comparison import Difference
from nvrx_lightning.verification.report import FaultReport, VerificationReport

SAME = FaultReport("Net.backward", 1, 9, 1, 8, None, "")
OTHER = dataclasses.replace(SAME, difference=Difference("sample order", "epoch 1, batch 3", "a", ""))
FAILED = dataclasses.replace(SAME, resumed=None, problem="the fit has failed: ValueError: no")


def test_equal_fits_end_with_code_0():
    report = VerificationReport((SAME, SAME))
    assert (report.ok, report.exit_code) == (True, 0)
    assert str(report).splitlines()[1].split() == ["Net.backward", "1", "9", "8", "the", "same"]
    assert str(report).endswith("the same bits after each fault (2 faults in 0 s)")


def test_a_difference_ends_with_code_1_and_names_the_first_one():
    report = VerificationReport((SAME, OTHER), warnings=("not exactly",), notes=("smaller",))
    assert report.exit_code == 1
    text = str(report)
    assert "sample order differs at epoch 1, batch 3: a became nothing" in text
    assert "warning: not exactly\nnote: smaller\n1 of 2 faults change the training" in text


def test_warnings_that_differ_in_numbers_only_are_one_line():
    text = str(VerificationReport((OTHER,), warnings=("6 items and had 4", "8 items and had 2", "other")))
    assert text.count("warning: ") == 2
    assert "warning: 6 items and had 4\nwarning: other\n" in text


def test_a_long_value_is_shortened():
    long = dataclasses.replace(SAME, difference=Difference("lr", "the end", "1" * 100, "2"))
    assert f"{'1' * 60}... became 2" in str(VerificationReport((long,)))


def test_a_fit_that_fails_ends_with_code_1():
    report = VerificationReport((FAILED,))
    assert report.exit_code == 1
    assert "      -  the fit has failed: ValueError: no" in str(report)


def test_what_is_not_verified_ends_with_code_2():
    assert VerificationReport(refused="write devices=2").exit_code == 2
    assert str(VerificationReport(refused="write devices=2")) == "not verified: write devices=2"
    assert VerificationReport().exit_code == 2


def test_a_report_is_read_back_from_its_file():
    report = VerificationReport((SAME, OTHER), warnings=("a",), notes=("b",))
    assert VerificationReport.read(report.written()) == report
