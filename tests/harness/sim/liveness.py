"""Liveness analysis of the local variables of a suspended function.

Two suspended flows that differ only in dead variables behave identically, and are one state of a search. An exception
handler counts as reading nothing but its exception: those of the flows do.
"""

from __future__ import annotations

import dis
import functools
import re
from types import CodeType

__all__ = ["live_names"]

_JUMPS_ALWAYS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
_ACCESS = re.compile("LOAD_FAST|LOAD_CLOSURE|STORE_FAST|DELETE_FAST")
_ENDS = ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "RETURN_CONST")


def live_names(code: CodeType, offset: int) -> frozenset[str]:
    """The names of the local variables that are read after the instruction at `offset` before they are set."""
    return _after(code)[offset]


@functools.cache
def _after(code: CodeType) -> dict[int, frozenset[str]]:
    """For each instruction, the variables that are live behind it: the largest fixed point of the usual equations."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    following = {each.offset: _following(instructions, at) for at, each in enumerate(instructions)}
    before: dict[int, frozenset[str]] = {each.offset: frozenset() for each in instructions}
    after: dict[int, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for each in reversed(instructions):
            behind = frozenset().union(*(before[offset] for offset in following[each.offset]))
            after[each.offset] = behind
            ahead = _before(each, behind)
            changed |= ahead != before[each.offset]
            before[each.offset] = ahead
    return after


def _following(instructions: list[dis.Instruction], at: int) -> list[int]:
    here = instructions[at]
    targets = [here.argval] if here.opcode in dis.hasjrel or here.opcode in dis.hasjabs else []
    if here.opname in (*_ENDS, *_JUMPS_ALWAYS) or at + 1 == len(instructions):
        return targets
    return [*targets, instructions[at + 1].offset]


def _before(here: dis.Instruction, behind: frozenset[str]) -> frozenset[str]:
    """The live variables in front of an instruction; from CPython 3.13 on, one may load or store two of them."""
    names = here.argval if isinstance(here.argval, tuple) else (here.argval,)
    for what, name in reversed(tuple(zip(_ACCESS.findall(here.opname), names, strict=False))):
        behind = behind | {name} if what.startswith("LOAD") else behind - {name}
    return behind
