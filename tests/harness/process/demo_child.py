"""A process of a demo, which `forking_demo` has forked: `demo_child PARENT MODULE ARGUMENTS...`.

It is what `demo_parts.child` is.
"""

from __future__ import annotations

import os
import runpy
import sys

from nvrx_core.process.lifeline import ParentDeathSignal
from tests.harness.process.forked_worker import await_adoption, follow_path

__all__: list[str] = []

if __name__ == "__main__":
    _, parent, module, *_ = sys.argv
    await_adoption(int(parent))
    ParentDeathSignal(int(parent)).set()
    os.setsid()
    follow_path("")
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
