"""Signatures in the reference: of `timeout: timedelta = parameter(DEFAULT, ...)`, they show the default alone."""

from __future__ import annotations

from typing import Any

import griffe

DECLARATIONS = {"parameter", "time_parameter", "setting"}


class DeclaredDefaults(griffe.Extension):
    """Replaces the declaration of a parameter by its default; griffe then takes it into the signature of the class."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Replace one declaration; the name of a constant of the same module is replaced by its value."""
        declared = attr.value
        if isinstance(declared, griffe.ExprCall) and declared.function.path.rpartition(".")[2] in DECLARATIONS:
            default = declared.arguments[0]
            constant = attr.module.members.get(default.name) if isinstance(default, griffe.ExprName) else None
            attr.value = constant.value if isinstance(constant, griffe.Attribute) else default
