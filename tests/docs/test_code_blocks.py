"""Every Python block of the documents compiles and uses no undefined name; each after `<!-- run -->` runs.

It runs as the one rank of a job of its own, in an empty folder; torch is imported once for all of them.
"""

import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import NamedTuple

import pytest

from tests.harness.process.host import free_ports
from tests.harness.process.job import Template
from tests.harness.process.launch import RUN_SCRIPT, ForkedProcess

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<run><!-- run -->\s*\n)?"
    r"^(?P<indent> *)```python\n"
    r"(?P<code>.*?)"
    r"^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    where: str
    code: str
    runs: bool


def blocks() -> list[Block]:
    found = []
    for document in filter(pathlib.Path.exists, DOCUMENTS):
        text = document.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            code = textwrap.dedent(match["code"])
            found.append(Block(f"{document.relative_to(ROOT)}:{line}", code, runs=bool(match["run"])))
    return found


WIDTH = 88
"""Characters of a line that a page of the site has room for."""
BLOCK_OF_ANY_KIND = re.compile(r"^( *)```.*?\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_a_line_of_code_fits_a_page(document):
    lines = [line for _, code in BLOCK_OF_ANY_KIND.findall(document.read_text()) for line in code.splitlines()]
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.where)
def test_block_compiles_or_runs(block, tmp_path, template):
    compile(block.code, block.where, "exec")
    if block.runs:
        run(block, tmp_path, template)


def test_blocks_import_what_they_use(tmp_path):
    for number, block in enumerate(blocks()):
        (tmp_path / f"block{number}.py").write_text(f"# {block.where}\n{block.code}")
    rules = ["--isolated", "--no-cache", "--select=F821,F811", "--output-format=full"]
    command = [sys.executable, "-m", "ruff", "check", *rules, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run(block: Block, folder: pathlib.Path, template: Template) -> None:
    script = folder / "block.py"
    script.write_text(block.code)
    with ForkedProcess(template, RUN_SCRIPT, [str(script)], one_rank(), str(folder)) as process:
        try:
            out, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, out + errors


def one_rank() -> dict[str, str]:
    """The environment of the one rank; the port after its own is free as well: it hosts its store there."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    return os.environ | place | {"MASTER_PORT": str(free_ports())}
