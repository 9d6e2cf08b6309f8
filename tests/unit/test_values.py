"""A `@value` class is a frozen dataclass to whoever uses it."""

from dataclasses import FrozenInstanceError, field, fields, replace

import pytest

from nvrx_core.values import replaced, value


@value
class Point:
    """A point."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = field(default_factory=tuple)


@value
class Spot(Point):
    """A point with a name."""

    name: str = ""

    def __repr__(self) -> str:
        return self.name


def test_values_are_equal_by_class_and_fields():
    assert Point(1) == Point(x=1, y=2) == Point(1, 2, ())
    assert hash(Point(1)) == hash(Point(1, y=2))
    assert Point(1) != Point(2)
    assert Point(1) != Spot(1)


def test_a_default_is_made_for_each_value():
    @value
    class Findings:
        of: dict[str, int] = field(default_factory=dict)

    given = {"a": 1}
    assert Findings().of is not Findings().of
    assert Findings(of=given).of is given


def test_a_value_is_replaced_by_one_with_other_fields():
    spot = Spot(1, tags=("a",), name="here")
    assert replaced(spot, y=5, name="there") == replace(spot, y=5, name="there") == Spot(1, 5, ("a",), "there")
    with pytest.raises(AssertionError, match="Spot has no z"):
        replaced(spot, z=1)


def test_a_value_without_fields_takes_no_arguments():
    @value
    class Nothing: ...

    assert Nothing() == Nothing()
    with pytest.raises(TypeError):
        Nothing(1)


def test_a_value_is_shown_with_its_fields():
    assert repr(Point(1)) == "Point(x=1, y=2, tags=())"
    assert repr(Spot(1, name="here")) == "here"


def test_a_value_does_not_change():
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2
    with pytest.raises(FrozenInstanceError):
        del point.x
    assert replace(point, y=5) == Point(1, 5)
    assert [each.name for each in fields(Spot)] == ["x", "y", "tags", "name"]


def test_a_value_matches_by_position():
    match Point(1, 5):
        case Point(x, y):
            assert (x, y) == (1, 5)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, (), 4), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": 1})]
)
def test_wrong_arguments_are_refused(args, kwargs):
    with pytest.raises(TypeError, match="Point takes"):
        Point(*args, **kwargs)
