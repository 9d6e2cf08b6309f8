"""What a user's type checker sees: parameters, plug-ins and decorated functions keep their static types."""

import re

import pytest

from tests.harness.type_checkers import CHECKERS, Findings, checked

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
CALLED_WITHOUT_THE_HANDLE = {
    "x: int, call_wrapper: CallWrapper": "1",
    "x: int, y: str, call_wrapper: CallWrapper": "x=1, y='b'",
    "x: int, call_wrapper: CallWrapper | None = None": "1",
    "x: int, *, call_wrapper: CallWrapper | None = None": "1",
    "call_wrapper, x": "1",
    "x, y=0": "1, 2",
    "x: Any, y: int = 0": "1, y=2",
    "x: object": "1",
    "*args: Any, **options: Any": "1, 2, b=3",
}
"""Parameters of a function, and the arguments of a call that works."""


METHODS = """\
from nvrx_core.inprocess import CallWrapper, Wrapper

class Training:
    @Wrapper()
    def run(self, steps: int) -> float:
        return 0.5

    @Wrapper()
    def watched(self, call: CallWrapper, steps: int) -> float:
        return 0.5

reveal_type(Training().run)
reveal_type(Training().watched(3))
Training().run("3")
"""
FUNCTIONS = "\n".join(
    f"@Wrapper()\ndef f{n}({parameters}) -> float:\n    return 0.5\nf{n}({arguments})"
    for n, (parameters, arguments) in enumerate(CALLED_WITHOUT_THE_HANDLE.items())
)
SCRIPTS = {
    "functions": SCRIPT,
    "mixed_up": MIXED_UP,
    "calls": f"from typing import Any\nfrom nvrx_core.inprocess import CallWrapper, Wrapper\n{FUNCTIONS}\n",
    "methods": METHODS,
}


@pytest.fixture(scope="module", params=CHECKERS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Findings]:
    """What a checker says of the scripts."""
    return checked(request.param, SCRIPTS, tmp_path_factory.mktemp(request.param))


def test_static_types_are_kept(found):
    script = found["functions"]
    assert script.revealed == REVEALED, script.output
    assert script.wrong_lines == WRONG_LINES, script.output


def test_a_call_without_the_handle_is_right_wherever_the_function_takes_it(found):
    script = found["calls"]
    strict = re.compile(r"\[no-untyped-(def|call)\]$")  # of mypy, for functions without annotations or with Any
    assert [error for error in script.errors if not strict.search(error[1])] == [], script.output


def test_a_method_keeps_its_static_type(found):
    script = found["methods"]
    assert script.revealed == ["(steps: int) -> float", "float"], script.output
    assert script.wrong_lines == [14], script.output


def test_an_initial_rank_is_not_mixed_up_with_a_rank(found):
    script = found["mixed_up"]
    kinds = [re.findall(r"(?:expected|parameter \".*\" of type) \"(.*?)\"", message) for _, message in script.errors]
    assert (script.wrong_lines, kinds) == (
        [7, 9, 10], [["InitialRank"], ["InitialRank"], ["Iterable[InitialRank]"]],
    ), script.output  # fmt: skip
