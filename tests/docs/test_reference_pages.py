"""The pages of variables, commands and exit codes are complete."""

import ast
import contextlib
import functools
import importlib
import io
import pathlib
import re
import tomllib

import pytest

from nvrx_core.errors import STORE_LOST

ROOT = pathlib.Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
READS_ENVIRONMENT = ROOT / "nvrx_core" / "settings" / "environment.py"
ROW = re.compile(r"^\| `([A-Z_]+)` \|", re.MULTILINE)
VARIABLE = re.compile(r"(?:NVRX|NCCL|TORCH|TORCHELASTIC|MASTER)_(?:[A-Z]+_)*[A-Z]+|RANK|WORLD_SIZE")
ANY_NAME = re.compile(r"[A-Z]{2,}(?:_[A-Z]+)+|RANK|TMPDIR")
LAUNCHERS = re.compile(VARIABLE.pattern + r"|(?:FT|LOCAL|GROUP|ROLE|SLURM|OMP)_(?:[A-Z]+_)*[A-Z]+|PYTHON_EXEC")
ENVIRONMENT = (REFERENCE / "environment.md").read_text()
OF_THE_LAUNCHER = ENVIRONMENT.partition("\n## Of ft_launcher\n")[2].partition("\n## ")[0]
OF_LIGHTNING = ENVIRONMENT.partition("\n## Of nvrx_lightning\n")[2].partition("\n## ")[0]
COMMANDS = (REFERENCE / "commands.md").read_text()
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
INTERNAL = {
    "nvrx_core.fault_tolerance",  # `RankMonitorServer` runs it
    "nvrx_core.health.program",  # `HealthRunner` runs it
    "nvrx_core.process.user_packages",  # asks for the module of the script
}
LAUNCHER = {"ft_launcher", "nvrx-launch"}  # its help is its page
WITH_SETTINGS = {"nvrx-health"}  # most of its options are settings, which have a page of their own


def constants(path: pathlib.Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@functools.cache
def variables_of_the_code() -> frozenset[str]:
    """Each name of that form in the file that reads the environment; those with a known prefix elsewhere."""
    found = {text for text in constants(READS_ENVIRONMENT) if ANY_NAME.fullmatch(text)}
    for path in (ROOT / "nvrx_core").rglob("*.py"):
        found |= {text for text in constants(path) if VARIABLE.fullmatch(text)}
    return frozenset(found)


def test_the_page_of_variables_has_those_that_the_code_reads() -> None:
    core = ENVIRONMENT.replace(OF_THE_LAUNCHER, "").replace(OF_LIGHTNING, "")
    assert set(ROW.findall(core)) == variables_of_the_code()


def test_the_page_of_variables_has_those_of_the_launcher() -> None:
    texts = set[str]().union(*map(constants, (ROOT / "launcher").rglob("*.py")))
    assert {text for text in texts if LAUNCHERS.fullmatch(text)} <= set(re.findall(r"`([A-Z_]+)`", OF_THE_LAUNCHER))


def test_the_page_of_variables_has_those_of_the_lightning_callback() -> None:
    folder = ROOT / "integrations" / "nvrx_lightning"
    texts = set[str]().union(*(constants(folder / name) for name in ("callback.py", "monitoring/faults.py")))
    assert set(ROW.findall(OF_LIGHTNING)) == {text for text in texts if re.fullmatch(r"[A-Z]+(_[A-Z]+){2,}", text)}


def section(command: str) -> str:
    return COMMANDS.partition(f"## `{command}`\n")[2].partition("\n## ")[0]


def modules_that_run() -> set[str]:
    files = (ROOT / "nvrx_core").rglob("*.py")
    names = {path.relative_to(ROOT).with_suffix("") for path in files if "__main__" in constants(path)}
    return {".".join(name.parts).removesuffix(".__main__") for name in names} - INTERNAL


@pytest.mark.parametrize("module", sorted(modules_that_run()))
def test_the_page_has_every_module_that_runs(module: str) -> None:
    assert f"`python -m {module}`" in COMMANDS


@pytest.mark.parametrize("command", SCRIPTS)
def test_the_page_has_every_command(command: str) -> None:
    assert f"`{command}`" in COMMANDS


@pytest.mark.parametrize("command", sorted(SCRIPTS.keys() - LAUNCHER - WITH_SETTINGS))
def test_the_page_has_the_options_of_each_command(command: str) -> None:
    module = importlib.import_module(SCRIPTS[command].partition(":")[0])
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        module.main(["--help"])
    found = re.findall(r"(--[a-z-]+)|\b([A-Z]{3,})\b", out.getvalue())
    named = {option or argument for option, argument in found} - {"--help", "HOST", "PORT"}
    assert named == set(re.findall(r"^\| `([^`]+)` \|", section(command), re.MULTILINE))


def test_the_page_of_exit_codes_has_that_of_a_lost_store() -> None:
    assert f"| {STORE_LOST} | `StoreLost`" in (REFERENCE / "exit-codes.md").read_text()
