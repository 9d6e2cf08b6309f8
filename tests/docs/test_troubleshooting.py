"""Each message that the page explains is one that the code can say, and they are in order."""

import ast
import functools
import importlib.util
import mmap
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
ELSEWHERE = "\n## Messages of torch\n"
HEADING = re.compile(r"^### (.+)$", re.MULTILINE)
VARIABLE = "…"
LIGHTNINGS = PAGE.read_text().partition("\n## Messages of Lightning\n")[2]
OURS, TORCHS = PAGE.read_text().partition("\n## Messages of the C++ library\n")[0].split(ELSEWHERE)


def text_of(node: ast.AST) -> str:
    """A string as a message shows it, with `…` for what is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[-\w.]*[sdrgf]", VARIABLE, node.value)
    return VARIABLE


@functools.cache
def messages() -> str:
    """All strings of the code, one after the other."""
    files = [*(ROOT / "nvrx_core").rglob("*.py"), *(ROOT / "launcher").rglob("*.py")]
    trees = [ast.parse(path.read_text()) for path in files]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr)]
    return "\n".join(text_of(node).replace("…:…", VARIABLE) for node in nodes)


@pytest.mark.parametrize("message", HEADING.findall(OURS))
def test_the_code_has_the_message(message: str) -> None:
    assert message.removesuffix(VARIABLE).rstrip() in messages()


@pytest.mark.parametrize("message", HEADING.findall(TORCHS))
def test_torch_has_the_message(message: str) -> None:
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    with (
        pathlib.Path(folder, "lib", "libtorch_cpu.so").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library,
    ):
        for part in message.removesuffix(VARIABLE).rstrip().split(", "):
            assert library.find(part.encode()) >= 0


@pytest.mark.parametrize("message", HEADING.findall(LIGHTNINGS))
def test_lightning_has_the_message(message: str) -> None:
    folder = importlib.util.find_spec("lightning").submodule_search_locations[0]
    connector = pathlib.Path(folder, "pytorch", "trainer", "connectors", "accelerator_connector.py")
    assert message.removesuffix(VARIABLE).rstrip() in connector.read_text()


@pytest.mark.parametrize("part", [OURS, TORCHS], ids=["ours", "torch's"])
def test_the_messages_are_in_order(part: str) -> None:
    headings = [re.sub(r"[^a-z0-9 ]", "", heading.lower()) for heading in HEADING.findall(part)]
    assert headings == sorted(headings)
