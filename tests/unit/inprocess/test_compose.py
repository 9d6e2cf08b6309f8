"""Compose: order, arguments, and what a composition is an instance of."""

import abc
import copy
import functools

import pytest

from nvrx_core.inprocess.compose import Compose


class Plugin(abc.ABC):
    @abc.abstractmethod
    def __call__(self, trail): ...


class Abort(Plugin):
    def __init__(self, name):
        self.name = name

    def __call__(self, trail):
        return [*trail, self.name]


class LoudAbort(Abort): ...


class Finalize(Plugin):
    def __call__(self, trail):
        return [*trail, "finalize"]


def test_the_last_one_listed_runs_first():
    assert Compose(Abort("a"), Abort("b"), Abort("c"))([]) == ["c", "b", "a"]


def test_its_parts_are_at_hand():
    parts = Abort("a"), Abort("b")
    assert Compose(*parts).instances == parts


@pytest.mark.parametrize(
    ("parts", "common", "not_common"),
    [
        ((Abort("a"),), Abort, LoudAbort),
        ((Abort("a"), LoudAbort("b")), Abort, LoudAbort),
        ((LoudAbort("a"), LoudAbort("b")), LoudAbort, Finalize),
        ((LoudAbort("a"), Finalize()), Plugin, Abort),
        ((Finalize(), len), Compose, Plugin),
        ((len, functools.partial(sum)), Compose, functools.partial),
        ((functools.partial(sum), functools.partial(max)), Compose, functools.partial),
        ((Abort("a"), Compose(LoudAbort("b"), LoudAbort("c"))), Abort, LoudAbort),
        ((Compose(LoudAbort("a")), Compose(LoudAbort("b"))), LoudAbort, Finalize),
        ((Compose(Abort("a")), Compose(Finalize())), Plugin, Abort),
    ],
)
def test_it_is_what_its_parts_have_in_common(parts, common, not_common):
    composed = Compose(*parts)
    assert isinstance(composed, Compose)
    assert isinstance(composed, common)
    assert not isinstance(composed, not_common)


def test_compositions_nest():
    assert Compose(Abort("a"), Compose(Abort("b"), Abort("c")), Abort("d"))([]) == ["d", "c", "b", "a"]


def test_a_tuple_arrives_as_arguments():
    assert Compose(lambda a, b: a - b, lambda x: (x, 1))(3) == 2
    assert Compose(lambda: "nothing", lambda x: ())(3) == "nothing"
    assert Compose(lambda x: (x, x))(1) == (1, 1)


def test_several_arguments_reach_the_first():
    assert Compose(lambda x: -x, lambda a, b: a + b)(1, 2) == -3


def test_parts_without_arguments_are_allowed():
    seen = []
    assert Compose(lambda: seen.append("b"), lambda: seen.append("a"))() is None
    assert seen == ["a", "b"]
    assert Compose(lambda x: x + 1, lambda: 1)() == 2


def test_a_forgotten_return_is_warned_of():
    def forgetful(state):
        return None

    with pytest.warns(UserWarning, match=r"forgetful got arguments and returned None: is a return missing\?"):
        assert Compose(lambda x: x, forgetful)(1) is None


def test_a_forgotten_return_of_an_object_is_warned_of():
    class Forgetful(Plugin):
        def __call__(self, trail):
            return None

    with pytest.warns(UserWarning, match="Forgetful got arguments"):
        Compose(Forgetful())(1)


def test_nothing_to_compose_is_refused():
    with pytest.raises(ValueError, match=r"instances=\(\): must be at least one callable"):
        Compose()


@pytest.mark.parametrize(("part", "found"), [(3, "int"), ((len,), "tuple; a trailing comma")])
def test_what_is_not_callable_is_refused(part, found):
    with pytest.raises(TypeError, match=f"must be of type Callable, not {found}"):
        Compose(len, part)


def test_a_composition_can_be_copied_and_shown():
    composed = copy.deepcopy(Compose(Abort("a"), Abort("b")))
    assert isinstance(composed, Abort)
    assert composed([]) == ["b", "a"]
    assert repr(Compose(len)) == "Compose(<built-in function len>)"
