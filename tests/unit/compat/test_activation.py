"""Which `nvidia_resiliency_ext` a process gets: an installed one, else nvrx's, where it is wanted."""

import importlib
import importlib.util
import sys
from pathlib import Path

import nvrx_compat
import pytest
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.process_environment import import_path

from nvrx_core import compatible_names

pytestmark = pytest.mark.usefixtures("no_package")
OURS = nvrx_compat.path()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution in a folder of packages."""
    package = tmp_path / "site" / "nvidia_resiliency_ext"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.6.0'\n")
    metadata = tmp_path / "site" / "nvidia_resiliency_ext-0.6.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-resiliency-ext\nVersion: 0.6.0\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    return str(package / "__init__.py")


def imported():
    return importlib.import_module("nvidia_resiliency_ext").__file__


def test_the_folder_holds_the_package_alone():
    assert [each.name for each in Path(OURS).iterdir() if each.name != "__pycache__"] == ["nvidia_resiliency_ext"]
    assert compatible_names.folder() == OURS


def test_nothing_is_importable_before_it_is_wanted():
    assert importlib.util.find_spec("nvidia_resiliency_ext") is None


def test_an_activation_lets_it_be_imported_and_a_second_one_does_nothing():
    assert nvrx_compat.activate()
    path = list(sys.path)
    assert path[-1] == OURS
    assert imported().startswith(OURS)
    assert nvrx_compat.activate()
    assert nvrx_compat.activate(force=True)
    assert sys.path == path


def test_an_installed_package_wins(installed):
    path = list(sys.path)
    assert not nvrx_compat.activate()
    assert sys.path == path
    assert imported() == installed


def test_an_installed_package_wins_over_a_folder_that_was_put_at_the_end(installed, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, OURS])
    assert not nvrx_compat.activate()
    assert imported() == installed


def test_it_is_replaced_only_when_that_is_asked_for(installed):
    assert nvrx_compat.activate(force=True)
    assert nvrx_compat.activate()
    assert imported().startswith(OURS)


def test_it_cannot_be_replaced_when_it_is_imported_already(installed):
    imported()
    assert not nvrx_compat.activate()
    with pytest.raises(RuntimeError, match=r"is imported already, from .*; call .*force=True\) earlier"):
        nvrx_compat.activate(force=True)


def test_a_folder_that_an_uninstallation_has_left_behind_is_no_package(installed):
    Path(installed).unlink()
    assert nvrx_compat.activate()
    assert imported().startswith(OURS)


def test_a_search_path_gets_the_folder_at_its_end_and_once():
    assert compatible_names.with_folder(["a"]) == ["a", OURS]
    assert compatible_names.with_folder([OURS, "a"]) == [OURS, "a"]


def test_a_search_path_stays_as_it_is_where_the_package_is_installed(installed):
    assert compatible_names.with_folder(["a"]) == ["a"]


def test_without_nvrx_compat_there_is_nothing_to_activate(monkeypatch):
    monkeypatch.setattr(compatible_names, "_OURS", ("nvrx_compat_that_is_missing", "on-path"))
    assert compatible_names.with_folder(["a"]) == ["a"]
    with pytest.raises(RuntimeError, match="nvrx_compat is not installed"):
        compatible_names.activate()


def path_of_workers(*argv, **environ):
    options = LaunchOptions.of(parse_arguments([*argv, "train.py"], {})[0], lambda kind: 1, {})
    return import_path(options, environ, "python3").get("PYTHONPATH")


def test_workers_get_the_folder_behind_what_they_inherit():
    assert path_of_workers() == OURS
    assert path_of_workers(PYTHONPATH="/a::/b") == f"/a::/b:{OURS}"


def test_workers_get_nothing_where_the_package_is_installed(installed):
    assert path_of_workers(PYTHONPATH="/a") is None


def test_workers_of_another_interpreter_and_other_programs_get_nothing():
    assert path_of_workers(PYTHON_EXEC="/usr/bin/python3.12") is None
    assert path_of_workers("--no-python") is None
    assert path_of_workers(PYTHON_EXEC="python3") == OURS
