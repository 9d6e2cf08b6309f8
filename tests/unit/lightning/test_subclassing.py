"""A class that takes anything and passes it on names what it takes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from nvrx_lightning.subclassing import tell_parameters


@dataclass(frozen=True, kw_only=True)
class Options:
    limit: timedelta | None = None
    ranks: int = 1


class Base:
    def __init__(self, backend: str = "gloo", **kwargs: Any) -> None:
        self.backend, self.others = backend, kwargs


class Front:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.ranks = kwargs.pop("ranks", 1)
        super().__init__(*args, **kwargs)


def test_a_constructor_names_the_parameters_of_its_base_and_the_options():
    made = tell_parameters(type("Made", (Front, Base), {}), Base, Options)
    parameters = inspect.signature(made).parameters
    assert list(parameters) == ["backend", "limit", "ranks", "kwargs"]
    assert (parameters["limit"].annotation, parameters["ranks"].default) == (timedelta | None, 1)


def test_it_takes_what_it_took():
    made = tell_parameters(type("Made", (Front, Base), {}), Base, Options)
    instance = made("nccl", ranks=3, bucket=4)
    assert (instance.backend, instance.ranks, instance.others) == ("nccl", 3, {"bucket": 4})
    assert type("Derived", (made,), {})(ranks=2).ranks == 2
