"""One section of a YAML file, wherever it lies, with the line of each value."""

import os
import tempfile
import textwrap

import pytest
from hypothesis import given, strategies as st

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.yaml_section import load, save


@pytest.fixture
def file(tmp_path):
    """Writes a file and gives its path."""

    def written(text):
        path = tmp_path / "settings.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return written


def answer(path):
    """What a file is answered with: its values, or the error."""
    try:
        return f"{path}: {load(path, 'section').values}"
    except ConfigurationError as error:
        return str(error)


def test_values_come_with_their_lines(file):
    path = file(
        """\
        # a comment
        section:
          number: 5

          mapping:
            inner: text
        """
    )
    found = load(path, "section")
    assert found.values == {"number": 5, "mapping": {"inner": "text"}}
    assert found.place("number") == f"{path}:3"
    assert found.parts("mapping") == {"inner": f"{path}:6"}
    assert found.parts("number") == {}


@pytest.mark.parametrize(
    "text",
    [
        "section: {a: 1}",
        "b: 2\nsection: {a: 1}",
        "outer: {inner: {section: {a: 1}}}",
        "list: [1, [2, {section: {a: 1}}]]",
        "section: text\nlater: {section: {a: 1}}",
        "first: {section: {a: 1}}\nsecond: {section: {a: 2}}",
        "deep: {deeper: {section: {a: 2}}}\nsection: {a: 1}",
        "shared: &s {a: 1}\nsection: *s",
        "shared: &s {a: 1}\nsection: {<<: *s}",
        "shared: &s {a: 2}\nsection: {<<: *s, a: 1}",
        "foreign: !tag {section: {a: 1}}",
        "&x loop: &l [*l]\nsection: {a: 1}",
    ],
)
def test_the_first_section_is_found_at_any_depth(file, text):
    assert load(file(text), "section").values == {"a": 1}


@pytest.mark.parametrize("text", ["section:", "section: {}", "section: ~"])
def test_a_section_may_be_empty(file, text):
    assert load(file(text), "section").values == {}


def test_an_expansion_of_aliases_costs_no_time(file):
    levels = "\n".join(f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}, *l{n - 1}]" for n in range(1, 40))
    assert load(file(f"l0: &l0 [x]\n{levels}\nsection: {{a: 1}}"), "section").values == {"a": 1}


@pytest.mark.parametrize("text", ["", "other: 1", "- 1", "text", "# comment"])
def test_a_missing_section_is_an_error_unless_it_may_be_missing(file, text):
    with pytest.raises(ConfigurationError, match="no section section"):
        load(file(text), "section")
    assert load(file(text), "section", ignore_missing=True).values == {}


def test_a_missing_file_is_an_error_unless_it_may_be_missing(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read, No such file"):
        load(tmp_path / "none.yaml", "section")
    assert load(tmp_path / "none.yaml", "section", ignore_missing=True).values == {}


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "section: 7", "section: {a: !!int x}"])
def test_what_is_wrong_is_an_error_also_where_it_may_be_missing(file, text):
    with pytest.raises(ConfigurationError):
        load(file(text), "section", ignore_missing=True)


def test_an_impossible_path_is_an_error():
    with pytest.raises(ConfigurationError, match="cannot be read, embedded null byte"):
        load("a\0b", "section")


@pytest.mark.parametrize("number", ["0", "10", "-3", "0.5", "1_000", "1e3", "1.0e+3"])
def test_a_decimal_number_is_not_ambiguous(file, number):
    assert "a" in load(file(f"section: {{a: {number}}}"), "section").values


@pytest.mark.parametrize("number", ["010", "0x10", "0b11", "1:30", "-1:30", "1:30:15.5"])
def test_a_number_that_is_not_decimal_is_ambiguous(file, number):
    with pytest.raises(ConfigurationError, match="is ambiguous, YAML reads it as"):
        load(file(f"section: {{a: {number}}}"), "section")


def test_a_quoted_number_is_text(file):
    assert load(file("section: {a: '1:30'}"), "section").values == {"a": "1:30"}


@given(st.binary() | st.text(alphabet="section: {}[]-&*<!#|\n'\"0x1é").map("section: ".__add__).map(str.encode))
def test_any_file_is_read_or_refused_in_one_line(content):
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        said = answer(file.name)
    assert said.splitlines() == [said]
    assert said.startswith(file.name)


def test_a_file_nested_in_blocks_is_refused(file):
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        load(file("- " * 5000), "section")


def test_a_file_is_written_as_a_whole(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("section: {a: 1}")
    save(path, "section", {"a": 2, "name": "ä", "none": None})
    assert load(path, "section").values == {"a": 2, "name": "ä", "none": None}
    assert os.listdir(tmp_path) == ["settings.yaml"]


def test_a_value_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("section: {a: 1}")
    with pytest.raises(Exception, match="cannot represent"):
        save(path, "section", {"a": object()})
    assert load(path, "section").values == {"a": 1}
    assert os.listdir(tmp_path) == ["settings.yaml"]
