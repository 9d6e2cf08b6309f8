"""The site, built once; the template of ranks that run examples and code blocks."""

import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.harness.process.job import LIVE_TEMPLATE, Template

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    """That of ranks with optimizers, whose first one imports torch._dynamo."""
    with contextlib.closing(Template(LIVE_TEMPLATE)) as template:
        yield template


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
