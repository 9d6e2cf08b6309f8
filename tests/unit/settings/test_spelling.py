"""The names of a setting outside Python."""

import importlib

import pytest

from nvrx_core.settings.spelling import Spelling, nearest, no_such_name

FT = Spelling(section="fault_tolerance", prefix="ft")


def test_all_names_of_a_setting_follow_from_its_field():
    assert FT.variable("safety_factor") == "NVRX_FT_SAFETY_FACTOR"
    assert FT.attribute("safety_factor") == "ft_safety_factor"
    assert FT.flag("safety_factor") == "--ft-safety-factor"


def test_a_flag_has_dashes_underscores_or_both():
    assert FT.flags("safety_factor") == (
        "--ft-safety-factor", "--ft_safety_factor", "--ft-safety_factor",
        "--ft-param-safety-factor", "--ft_param_safety_factor", "--ft-param_safety_factor", "--ft-param-safety_factor",
    )  # fmt: skip


def test_a_flag_of_one_word_has_fewer_spellings():
    assert FT.flags("segment") == (
        "--ft-segment", "--ft_segment", "--ft-param-segment", "--ft_param_segment", "--ft-param_segment",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("safety-factor", "safety_factor"),
        ("SAFETY_FACTER", "safety_factor"),
        ("--log-levle", "log_level"),
        ("colour", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_found(written, meant):
    assert nearest(written, ["log_level", "safety_factor"]) == meant


def test_of_similar_names_the_first_is_suggested():
    assert nearest("a-b", ["a_b", "a-b"]) == "a_b"


@pytest.mark.parametrize("written", ["InprocessDDPStrategy", "InProcessDdpStrategy", "InProcessDDPStragety"])
def test_the_text_for_a_slip_of_the_pen_says_what_was_meant(written):
    error = no_such_name("package", written, ["InProcessDDPStrategy", "verify"])
    assert isinstance(error, AttributeError)
    assert str(error) == f"package has no {written}; write InProcessDDPStrategy"


@pytest.mark.parametrize("written", ["version", "DDPStrategy", "__path__", "_Wrapper"])
def test_an_attribute_that_is_asked_for_may_be_missing(written):
    error = no_such_name("package", written, ["InProcessDDPStrategy", "verify", "Wrapper"])
    assert isinstance(error, AttributeError)


@pytest.mark.parametrize(
    ("module", "written", "told"),
    [
        ("nvrx_core", "Wrapper", "Wrapper is in nvrx_core.inprocess; write from nvrx_core.inprocess import Wrapper"),
        ("nvrx_core.inprocess", "Wraper", "nvrx_core.inprocess has no Wraper; write Wrapper"),
        ("nvrx_lightning", "InprocessDDPStrategy",
         "nvrx_lightning has no InprocessDDPStrategy; write InProcessDDPStrategy"),
    ],
)  # fmt: skip
def test_the_packages_that_users_import_from_name_what_was_meant(module, written, told):
    package = importlib.import_module(module)
    with pytest.raises(ImportError, match=f"^{told}$"):
        exec(f"from {module} import {written}", {})
    with pytest.raises(AttributeError, match=f"^{told}$"):
        getattr(package, written)
    assert not hasattr(package, written)
    assert getattr(package, "no_such_name", None) is None
