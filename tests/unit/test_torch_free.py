"""What a monitor imports stays free of torch: it starts in milliseconds and holds a few megabytes."""

import importlib.util
import pkgutil
import subprocess
import sys

import pytest

PACKAGES = (
    "compatible_names", "errors", "events", "failpoint", "fault", "health", "liveness", "logs", "parsing",
    "process",
    "progress", "settings", "values",
)  # fmt: skip


def modules(package: str) -> list[str]:
    name = f"nvrx_core.{package}"
    folders = importlib.util.find_spec(name).submodule_search_locations or []
    return [name, *(module.name for module in pkgutil.walk_packages(folders, f"{name}."))]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_no_torch(package):
    assert "torch" not in loaded_by(*modules(package))


def test_the_settings_of_a_monitor_import_neither_torch_nor_yaml():
    assert not {"torch", "yaml"} & set(loaded_by("nvrx_core.fault_tolerance.config"))


def test_the_wait_daemon_imports_no_torch():
    assert "torch" not in loaded_by("nvrx_core.inprocess.wait_daemon")


def test_a_rank_imports_no_rules_of_attribution():
    assert not [name for name in loaded_by("nvrx_core.inprocess.wrap") if name.startswith("nvrx_core.attribution")]


@pytest.mark.parametrize(
    "package", ["nvrx_core", "nvrx_core.fault_tolerance", "nvrx_core.inprocess", "nvrx_core.store"]
)
def test_package_imports_nothing_eagerly(package):
    loaded = {name for name in loaded_by(package) if name.split(".")[0] in ("nvrx_core", "torch")}
    assert loaded == {"nvrx_core", package}


def loaded_by(*names: str) -> list[str]:
    """What a fresh interpreter holds after importing these."""
    script = f"import importlib, sys; [importlib.import_module(name) for name in {names}]; print(*sys.modules)"
    return subprocess.check_output([sys.executable, "-c", script], text=True).split()
