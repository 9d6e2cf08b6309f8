"""The structure of the code: which package may import which, and the rules that no linter checks."""

import ast
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from tests.harness.sources import ROOT, nodes, sources, text

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("integrations", "launcher")
UNIT_TEST_FOLDERS = {
    "compat": "integrations/nvrx_compat",
    "launcher": "launcher/nvrx_launcher",
    "lightning": "integrations/nvrx_lightning",
    "megatron": "integrations/nvrx_megatron",
}
"""The folders of unit tests whose name is not that of their package."""
LIBRARIES = {"torch", "yaml"}
EXTRAS = {
    "nvrx_core/attribution/web_service.py": {"httpx", "starlette", "uvicorn"},
    "nvrx_core/logs/grpc_service.py": {"grpc"},
    "nvrx_core/logs/log_service_pb2.py": {"google"},
    "nvrx_core/store/etcd_client.py": {"etcd3gw", "requests"},
    "nvrx_core/health/nvml.py": {"pynvml"},
    "nvrx_core/health/service.py": {"grpc"},
    "nvrx_core/health/nvhcd_pb2.py": {"google"},
}
ENVIRONMENT = (
    "nvrx_core/settings/environment.py",
    "nvrx_core/store/",
    "launcher/nvrx_launcher/cli.py",
    "launcher/nvrx_launcher/workers/process_environment.py",
    "launcher/nvrx_launcher/workers/worker_program.py",  # a program of its own
    "integrations/nvrx_lightning/environment.py",
    "integrations/nvrx_megatron/environment.py",
)
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
BROAD = {"", "Exception", "BaseException"}


def test_imports_keep_the_contracts():
    lint = "from importlinter.cli import lint_imports_command as lint; lint()"  # in here it would disable our loggers
    command = [sys.executable, "-c", lint, "--no-cache", "--no-logo"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_core_needs_only_torch_yaml_and_the_standard_library():
    allowed = LIBRARIES | {"nvrx_core"} | sys.stdlib_module_names
    others = {
        f"{path}: {name}"
        for path, node in (*nodes(ast.Import), *nodes(ast.ImportFrom))
        for name in imported(node)
        if path.startswith("nvrx_core/") and name.split(".")[0] not in allowed | EXTRAS.get(path, set())
    }
    assert not others


def test_pure_modules_are_the_ones_under_full_coverage():
    contracts = {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
    pure = {module.replace(".", "/") for module in contracts["pure"]["source_modules"]}
    paths = PROJECT["tool"]["coverage"]["report"]["include"]
    covered = {re.sub(r"^(integrations|launcher)/|/\*$|\.py$", "", path) for path in paths}
    assert covered == pure


def test_broad_except_says_which_boundary_it_guards():
    unexplained = [
        f"{path}:{node.lineno}"
        for path, node in nodes(ast.ExceptHandler)
        if BROAD & caught(node.type) and "# boundary: " not in text(path).splitlines()[node.lineno - 1]
    ]
    assert not unexplained


def test_environment_is_touched_in_one_place():
    looked_at = (*nodes(ast.Attribute), *nodes(ast.ImportFrom))
    touched = [(path, node.lineno) for path, node in looked_at if ENVIRONMENT_NAMES & from_os(node)]
    assert not [where for where in touched if not where[0].startswith(ENVIRONMENT)]


def test_every_file_says_what_it_is_and_what_is_public():
    silent = {}
    for path, tree in sources().items():
        lines = len((ast.get_docstring(tree) or "").splitlines())
        if not 1 <= lines <= 15:
            silent[path] = f"a docstring of {lines} lines, not 1 to 15"
        elif len(tree.body) > 1 and "__all__" not in names(tree) and not path.endswith("_pb2.py"):  # generated
            silent[path] = "no __all__"
    assert not silent


def test_unit_tests_mirror_the_packages():
    tests = ROOT / "tests" / "unit"
    folders = {path.relative_to(tests).parts for path in tests.rglob("test_*.py")}
    packages = {part: ROOT / home for part, home in UNIT_TEST_FOLDERS.items()}
    homes = {parts[:-1]: packages.get(parts[0], ROOT / "nvrx_core" / parts[0]) for parts in folders if parts[:-1]}
    assert [parts for parts, home in homes.items() if not home.joinpath(*parts[1:]).is_dir()] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_with_a_common_name_is_no_package(folder):
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_wheel_installs_only_nvrx_names():
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [name for name in packages if not pathlib.Path(name).name.startswith("nvrx_")] == []


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [] if node.level else [node.module]


def from_os(node: ast.Attribute | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Attribute):
        return {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "os" else set()
    return {alias.name for alias in node.names} if node.module == "os" else set()


def names(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def caught(kind: ast.expr | None) -> set[str]:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return {ast.unparse(each).removeprefix("builtins.") if each else "" for each in kinds}
