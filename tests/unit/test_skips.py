"""A skipped test fails the run of continuous integration, unless it is listed."""

import pathlib
import shutil
import subprocess
import sys

import pytest

CONFTEST = pathlib.Path(__file__).parents[1] / "conftest.py"
TESTS = """
import pytest

def test_that_runs():
    pass

@pytest.mark.skip(reason="no GPU here")
def test_that_is_skipped():
    pass
"""


@pytest.mark.parametrize(("listed", "code"), [(".*::test_other", 1), (r".*::test_that_is_skipped: .*no GPU", 0)])
def test_only_a_listed_skip_passes(tmp_path, listed, code):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "allowed_skips.txt").write_text(f"# the list\n\n{listed}\n")
    (tmp_path / "process").mkdir()
    (tmp_path / "process" / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command += ["--only-listed-skips", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("test_that_is_skipped" in done.stderr) is (code == 1)
