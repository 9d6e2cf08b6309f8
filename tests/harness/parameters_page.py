"""Generator of docs/reference/parameters.md, from the declarations of the wrapper's parameters.

Regenerate: python -m tests.harness.parameters_page > docs/reference/parameters.md
"""

import signal
from datetime import timedelta

from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.wrap import Wrapper
from nvrx_core.settings.parameter import Declaration, declarations

__all__ = ["page"]

HEAD = """\
# Parameters of Wrapper

Every parameter is given by name, and checked before anything is started: a wrong value is a `ValueError` or a
`TypeError` that names the parameter, the value and the rule. A time is a `datetime.timedelta`.

| parameter | default | rule | what it is for |
|---|---|---|---|
"""


def page() -> str:
    """The page's text."""
    rows = [
        f"| `{name}` | {default_of(field.default)} | {rule_of(declared)} | {declared.help} |"
        for name, (field, declared) in declarations(Wrapper).items()
    ]
    return HEAD + "\n".join(rows) + "\n"


def default_of(value: object) -> str:
    """A default as it is read: seconds for a time, a call for a plug-in."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, Compose):
        return f"`Compose({', '.join(f'{type(each).__name__}()' for each in value.instances)})`"
    if isinstance(value, type):
        return f"`{value.__name__}`"
    if isinstance(value, int) and value > signal.SIGRTMIN:
        return f"`signal.SIGRTMIN + {value - signal.SIGRTMIN}`"
    plain = value is None or isinstance(value, bool | int | str)
    return f"`{value!r}`" if plain else f"`{type(value).__name__}()`"


def rule_of(declared: Declaration) -> str:
    """What holds for a value."""
    rules = [declared.rule.text] if declared.rule is not None else []
    return "; ".join([*rules, *(f"shorter than `{name}`" for name in declared.shorter_than)])


if __name__ == "__main__":
    print(page(), end="")
