"""The output of a command whose reader has seen enough."""

import os
import subprocess
import sys

import pytest

from nvrx_core.process.standard_output import show

COMMAND = "from nvrx_core.process.standard_output import show; show('x' * 1_000_000)"


def test_a_reader_that_has_closed_the_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        done = subprocess.run([sys.executable, "-c", COMMAND], stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_text_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show("two\nlines")
    assert capsys.readouterr().out == "two\nlines\n"
