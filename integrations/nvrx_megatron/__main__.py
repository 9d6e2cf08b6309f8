"""Runs a Megatron-LM script: `python -m nvrx_megatron pretrain_gpt.py --inprocess-restart ...`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

USAGE = """\
usage: python -m nvrx_megatron SCRIPT [ARGUMENTS OF THE SCRIPT ...]
       ft_launcher [OPTIONS] -m nvrx_megatron SCRIPT [ARGUMENTS OF THE SCRIPT ...]

Runs an unmodified script of Megatron-LM, such as pretrain_gpt.py, with in-process restart around it where it is given
--inprocess-restart. All flags are the script's own.
"""
BAD_USAGE = 2


def main(words: Sequence[str]) -> int:
    """Run the script; returns an exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else BAD_USAGE
    script = Path(words[0])
    if not script.is_file():
        print(f"nvrx_megatron: there is no script {script}; {USAGE.splitlines()[0]}", file=sys.stderr)
        return BAD_USAGE
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("nvrx_megatron").setLevel(logging.INFO)
    sys.argv[:] = list(words)
    sys.path[0] = str(script.resolve().parent)  # as Python does for a script
    from nvrx_megatron.script import run_script

    run_script(str(script))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
