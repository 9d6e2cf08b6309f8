"""What a user's type checker sees: parameters, plug-ins and decorated functions keep their static types."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """\
from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper, Wrapper

reveal_type(Wrapper().soft_timeout)
reveal_type(Wrapper().enabled)
reveal_type(inprocess.rank_assignment.ShiftRanks())

@Wrapper()
def plain(x: int, y: str) -> float:
    return 0.5

@Wrapper()
def injected(call: CallWrapper, x: int) -> float:
    return 0.5

reveal_type(inprocess.CallWrapper.iteration_store)
reveal_type(plain)
reveal_type(injected)
reveal_type(plain(1, ""))
reveal_type(injected(1))
plain("not an int", "")
plain(1)
Wrapper(soft_timeout=3)
Wrapper(soft_time_out=None)
"""
MIXED_UP = """\
from nvrx_core.inprocess.coordination.membership import Membership
from nvrx_core.rank_assignment.base import FrozenState
from nvrx_core.store.keys import StoreKeys

def use(state: FrozenState, keys: StoreKeys, membership: Membership) -> None:
    keys.lease(state.initial_rank)
    keys.lease(state.rank)
    membership.mark_left(state.initial_rank)
    membership.mark_left(state.rank)
    membership.have_left(range(state.world_size))
"""
"""A rank's identity for the whole call, and its rank in one iteration."""
REVEALED = [
    "timedelta",
    "bool",
    "ShiftRanks",
    "(self: CallWrapper) -> Store",
    "(x: int, y: str) -> float",
    "(x: int) -> float",
    "float",
    "float",
]
WRONG_LINES = [21, 22, 23, 24]
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_static_types_are_kept(checker, tmp_path):
    if checker == "pyright" and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([*CHECKERS[checker], str(script)], cwd=ROOT, capture_output=True, text=True, check=False)
    revealed = re.findall(r'(?:Revealed type is|Type of ".*" is) "(.*)"', done.stdout)
    assert [re.sub(r"^def |[\w.]+\.(?=\w)", "", each) for each in revealed] == REVEALED, done.stdout + done.stderr
    assert [int(line) for line in re.findall(r"script\.py:(\d+)(?::\d+)?.* error: ", done.stdout)] == WRONG_LINES


def test_an_initial_rank_is_not_mixed_up_with_a_rank(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MIXED_UP)
    done = subprocess.run([*CHECKERS["mypy"], str(script)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert re.findall(r"script\.py:(\d+): error: .* expected \"(.*)\"", done.stdout) == [
        ("7", "InitialRank"),
        ("9", "InitialRank"),
        ("10", "Iterable[InitialRank]"),
    ], done.stdout + done.stderr
