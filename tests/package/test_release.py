"""What a release says of itself: one version, and notes that are its section of the changelog."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

import nvrx_core

ROOT = Path(__file__).parents[2]
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- One more.

## [1.2.0] - 2026-01-31

### Fixed

- That [one](docs/x.md).

## [1.1.0] - 2026-01-01

- The first.
"""


@pytest.fixture(scope="module")
def notes():
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / ".github" / "release_notes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.2.0", "### Fixed\n\n- That [one](docs/x.md)."), ("1.1.0", "- The first."), ("1.3.0", ""), ("1", "")],
)
def test_the_notes_of_a_release_are_its_section_of_the_changelog(notes, version, expected):
    assert notes.section(CHANGELOG, version) == expected


def test_a_tag_that_is_not_the_version_is_refused(notes):
    with pytest.raises(SystemExit, match=f"the package's version {nvrx_core.__version__}: set it"):
        notes.main("v999")


def test_the_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == nvrx_core.__version__


def test_continuous_integration_runs_what_a_developer_runs():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    local = (ROOT / ".ci" / "run").read_text()
    assert commands == {"make docs"} | {line for line in local.splitlines() if line.startswith("make ")}


def test_every_workflow_and_issue_template_is_read(subtests):
    for path in (ROOT / ".github").rglob("*.yml"):
        with subtests.test(path.name):
            assert isinstance(yaml.safe_load(path.read_text()), dict)
