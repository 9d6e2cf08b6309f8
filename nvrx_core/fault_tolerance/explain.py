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
from nvrx_core.settings.parameter import declarations

__all__ = ["main", "table"]


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
    show("\n".join(table(config)))
    return 0


def table(config: FaultToleranceConfig) -> list[str]:
    """Return a line for each setting: its name, its value and its source."""
    shown = {name: declared.shown(getattr(config, name)) for name, (_, declared) in declarations(config).items()}
    widths = max(map(len, shown)), max(map(len, shown.values()))
    return [f"{name:{widths[0]}}  {shown[name]:{widths[1]}}  {told}" for name, told in config.explain().items()]


if __name__ == "__main__":
    sys.exit(main())
