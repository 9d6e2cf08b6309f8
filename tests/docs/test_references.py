"""What the documents name is there: tests, files, links from the pages that are not part of the site."""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEST = re.compile(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)?((?:::\w+)?)(?:\[[^`]*\])?`")
FOLDERS = "nvrx_core|tests|examples|docs|" + "|".join(
    sorted(each.name for each in (ROOT / "nvrx_core").iterdir() if each.is_dir())
)
FILE = re.compile(rf"`((?:{FOLDERS})/[\w./-]+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def name(document: pathlib.Path) -> str:
    return str(document.relative_to(ROOT))


def named_tests(text: str) -> Iterator[tuple[str, str]]:
    """File and function; `::test_x` alone belongs to the file before it."""
    file = ""
    for found in TEST.finditer(text):
        file = found[1] or file
        if found[1] or found[2].startswith("::test_"):
            yield file, found[2].removeprefix("::")


@functools.cache
def functions_of(path: pathlib.Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))


def exists(file: str, function: str) -> bool:
    folders = [ROOT / "tests", ROOT / "tests" / "process"]
    path = next((folder / file for folder in folders if (folder / file).exists()), None)
    return path is not None and (not function or function in functions_of(path))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_test_that_is_named_exists(document: pathlib.Path) -> None:
    assert not [place for place in named_tests(document.read_text()) if not exists(*place)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_file_that_is_named_exists(document: pathlib.Path) -> None:
    named = [path for path in FILE.findall(document.read_text()) if "." in path.rsplit("/", 1)[-1]]
    roots = (ROOT, ROOT / "nvrx_core", ROOT / "tests")
    assert not [path for path in named if not any((root / path).exists() for root in roots)]


@pytest.mark.parametrize("document", DOCUMENTS[:2], ids=name)
def test_every_link_has_an_end(document: pathlib.Path) -> None:
    assert not [link for link in LINK.findall(document.read_text()) if not (ROOT / link).exists()]
