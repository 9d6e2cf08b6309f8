"""The part of docs/reference/compatible-names.md on injected faults, from the functions and the kinds that nvrx has."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator

from nvrx_core.testing import fault_kinds
from nvrx_core.testing.dispatch import dispatch_fault_injection
from nvrx_core.testing.fault_kinds import FaultKind
from nvrx_core.testing.injection import KNOWN_AS
from nvrx_core.testing.random_faults import inject_fault

__all__ = ["section"]

HEAD = """
## Injected faults

`shared_utils.inject_fault` and `inprocess.tools.inject_fault` have the same functions. All ranks call `inject_fault`,
which chooses those that get a fault; `dispatch_fault_injection` injects one into the calling rank. Both return a
running `threading.Timer`, which can be cancelled; in a rank without a fault, `inject_fault` returns None. No document
of nvidia-resiliency-ext states the parameters of its `inject_fault`: these are nvrx's own. Without a process group the
ranks are those of RANK and WORLD_SIZE, and need the same `seed`.
"""
KINDS = """
The kinds, each a member of `Fault`:

| `Fault` | what happens | `nvrx_core.testing.FaultKind` |
|---|---|---|
"""
TAIL = """
`inject_fault` chooses among those that need no CUDA device, unless `faults` lists others; one that needs a device is a
`ValueError` where there is none. `WORKLOAD_EXC` becomes due, and the training loop raises it where it calls
`maybe_raise_workload_exception()`, once; `clear_workload_exception()` forgets it.
"""
NOT_PARAMETERS = re.compile(r"\n\n(Returns|Raises):")


def section() -> str:
    parts = [parameters_of(function) for function in (inject_fault, dispatch_fault_injection)]
    kinds = [f"| `{name}` | {happens(kind)} | `{kind.name}` |\n" for name, kind in KNOWN_AS.items()]
    return "".join([HEAD, *parts, KINDS, *kinds, TAIL])


def parameters_of(function: Callable[..., object]) -> str:
    """A table of its parameters, from its signature and its docstring."""
    shown = inspect.signature(function).parameters.values()
    texts = dict(arguments(function))
    rows = (f"| `{each.name}` | {default_of(each)} | {texts[each.name]} |\n" for each in shown)
    return f"\n| parameter of `{function.__name__}` | default | what it is |\n|---|---|---|\n{''.join(rows)}"


def default_of(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"


def arguments(function: Callable[..., object]) -> Iterator[tuple[str, str]]:
    """The entries under `Args:` of a docstring."""
    text = NOT_PARAMETERS.split(inspect.getdoc(function).partition("Args:\n")[2])[0]
    for entry in re.split(r"\n?^    (?=\w)", text, flags=re.MULTILINE)[1:]:
        name, _, what = entry.partition(": ")
        yield name, " ".join(what.split())


def happens(kind: FaultKind) -> str:
    """The docstring below the kind's value."""
    body = next(
        node for node in ast.parse(inspect.getsource(fault_kinds)).body if getattr(node, "name", "") == "FaultKind"
    )
    texts = {
        value.targets[0].id: text.value.value
        for value, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(value, ast.Assign)
    }
    return texts[kind.name]
