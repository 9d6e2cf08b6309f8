"""Generator of docs/reference/parameters.md, from the declarations of the wrapper's parameters and of the front doors'.

Regenerate: python -m tests.harness.parameters_page > docs/reference/parameters.md
"""

import argparse
import signal
from datetime import timedelta

from nvrx_lightning.options import InProcessOptions
from nvrx_megatron.arguments import add_arguments

from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.wrap import Wrapper
from nvrx_core.settings.parameter import Declaration, declarations

__all__ = ["page"]

HEAD = """\
# Parameters of Wrapper

Every parameter is given by name, and checked before anything is started: a wrong value is a `ValueError` or a
`TypeError` that names the parameter, the value and the rule. A time is a `datetime.timedelta`.

"""
OF_LIGHTNING = """
## Options of the Lightning strategies

[`InProcessDDPStrategy` and the others](../how-to/lightning.md#in-process-restart) take these besides the arguments
of the strategies whose place they take, and refuse what neither has.

"""
OF_MEGATRON = """
## Flags of Megatron-LM

Those of [in-process restart](../how-to/megatron.md); times in seconds. A default of Megatron-LM's own parser wins.

| flag | default | what it is for |
|---|---|---|
"""
COLUMNS = """\
| parameter | default | rule | what it is for |
|---|---|---|---|
"""


def page() -> str:
    """The page's text."""
    return HEAD + table(Wrapper) + OF_LIGHTNING + table(InProcessOptions) + OF_MEGATRON + flags()


def flags() -> str:
    """The table of Megatron's flags."""
    (group,) = (
        each
        for each in add_arguments(argparse.ArgumentParser(add_help=False))._action_groups
        if each.title == "in-process restart"
    )
    rows = [
        f"| `{each.option_strings[0]}` | `{each.default}` | {(each.help or '').replace(' (%(default)g)', '')} |"
        for each in group._group_actions
    ]
    return "\n".join(rows) + "\n"


def table(declaring: type) -> str:
    """The table of the parameters that a class declares."""
    rows = [
        f"| `{name}` | {default_of(field.default)} | {rule_of(declared)} | {declared.help} |"
        for name, (field, declared) in declarations(declaring).items()
    ]
    return COLUMNS + "\n".join(rows) + "\n"


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
