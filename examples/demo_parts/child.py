"""Runs a module as `python -m` does, and ends with the parent: `python -m demo_parts.child PARENT MODULE ARGUMENTS`.

So nothing outlives the demo when it is killed, either.
"""

from __future__ import annotations

import runpy
import sys

from nvrx_core.process.lifeline import ParentDeathSignal

__all__ = ["main"]


def main() -> None:
    """Runs the module; `PARENT` is the pid of the process that has started this one."""
    _, parent, module, *_ = sys.argv
    ParentDeathSignal(int(parent)).set()
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
