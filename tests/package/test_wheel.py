"""The wheel, in an environment that has nothing else: what it installs, what it says of itself, and that it works.

torch comes from the environment of the tests, by a path; nothing is downloaded but what builds the wheel.
"""

from __future__ import annotations

import email
import re
import socket
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import blocks, one_rank

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
PACKAGES = [ROOT / path for path in SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
LIMIT = 120


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and a path to this one's packages behind it.

    The path is a line of a .pth file, so the .pth files that lie there have no effect: those of an editable nvrx.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip("--python", folder / "bin" / "python", "install", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "packages_of_the_tests.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
    return folder


def run(environment: Path, *command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in one_rank().items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    place = environment / "bin" / command[0]
    return subprocess.run(
        [place, *command[1:]], cwd=folder, env=clean, capture_output=True, text=True, timeout=LIMIT, check=False
    )


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(path))


def test_the_wheel_holds_the_package_its_types_and_its_license(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"nvrx", *(folder.name for folder in PACKAGES)}
    assert {f"{folder.name}/py.typed" for folder in PACKAGES} <= {*names}
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    modules = {str(path.relative_to(folder.parent)) for folder in PACKAGES for path in folder.rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}


def test_an_installation_brings_no_tool_of_the_developers(metadata: Message) -> None:
    assert metadata.get_all("Provides-Extra") == ["attribution", "etcd", "gpu", "grpc", "lightning", "megatron"]
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert {re.split(r"\W", each)[0] for each in needed} == {"torch", "pyyaml"}


def test_the_description_is_the_readme_with_links_that_lead_somewhere(metadata: Message) -> None:
    text = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# nvrx")
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 10
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    ours = [link for link in links if link.startswith(PROJECT["urls"]["Repository"])]
    assert f"{PROJECT['urls']['Repository']}/blob/main/LICENSE" in ours


def test_the_addresses_are_those_of_one_repository() -> None:
    assert {address.startswith(PROJECT["urls"]["Repository"]) for address in PROJECT["urls"].values()} == {True}


def test_the_readme_example_runs_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    example = next(block for block in blocks() if block.runs and block.where.startswith("README.md:"))
    (tmp_path / "train.py").write_text(f"{example.code}\nimport nvrx_core\nprint(nvrx_core.__file__)\n")
    done = run(environment, "python", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(done.stdout.split()[-1]).is_relative_to(environment)


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_a_command_explains_itself_under_its_name(environment: Path, tmp_path: Path, command: str) -> None:
    done = run(environment, command, "--help", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    name = re.match(r"usage: (\S+) ", done.stdout)[1]
    assert PROJECT["scripts"][name] == PROJECT["scripts"][command], "an alias shows the command's first name"


def test_nvrx_store_serves_until_it_is_ended(environment: Path, tmp_path: Path) -> None:
    command = [environment / "bin" / "nvrx-store", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as store:
        host, port = store.stdout.readline().strip().split(":")
        socket.create_connection((host, int(port))).close()
        store.terminate()
        assert store.wait(LIMIT) == 0
