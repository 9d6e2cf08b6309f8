"""Runs a user's script in a rank, as `python SCRIPT ARGUMENTS...` would."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    script = sys.argv.pop(1)
    sys.argv[0] = script
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
