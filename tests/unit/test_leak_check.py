"""A test that leaves something behind fails, by its name; what goes by itself in a moment does not count."""

import pathlib
import shutil
import subprocess
import sys

CONFTEST = pathlib.Path(__file__).parents[1] / "conftest.py"
TESTS = """
import os
import subprocess
import sys

def run(code):
    subprocess.run([sys.executable, "-c", "import os, time; " + code], check=True)

def test_an_orphan_that_ends_soon():
    run("os.fork() or time.sleep(0.2)")

def test_garbage_that_holds_a_file():
    cycle = [open(os.devnull)]
    cycle.append(cycle)

def test_an_orphan_that_stays():
    run("os.fork() or time.sleep(60)")

def test_a_file_that_stays():
    os.open("/dev/zero", os.O_RDONLY)

def test_nothing():
    pass
"""


def test_what_stays_is_named(tmp_path):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "process").mkdir()
    (tmp_path / "process" / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "5 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    left = [text.splitlines()[1] for text in done.stdout.split("left behind by this test:")[1:]]
    assert ["time.sleep(60)" in left[0], "(/dev/zero)" in left[1]] == [True, True], left
