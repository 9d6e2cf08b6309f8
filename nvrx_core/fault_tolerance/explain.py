"""Prints the settings from flags, variables and a YAML file, and the source of each; refuses wrong ones.

python -m nvrx_core.fault_tolerance.explain --ft-cfg-path ft.yaml
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.process.standard_output import show

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of all settings; return exit code 2 when one is wrong."""
    command = "python -m nvrx_core.fault_tolerance.explain"
    text = "Print the settings of fault tolerance and where each comes from."
    parser = argparse.ArgumentParser(command, usage=f"{command} [options]", description=text, allow_abbrev=False)
    FaultToleranceConfig.add_arguments(parser)
    args, unknown = parser.parse_known_args(argv)
    try:
        FaultToleranceConfig.refuse_unknown_flags(unknown)
        config = FaultToleranceConfig.from_args(args)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if unknown:
        parser.error(f"unknown argument {unknown[0]}")
    show("\n".join(config.table()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
