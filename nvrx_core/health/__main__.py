"""Check the health of this node: `nvrx-health`, or `python -m nvrx_core.health`.

It takes the options of the launcher that concern health, and its YAML file, and runs the checks that a launcher would
run before it joins. Exit code: 0 if no check has failed, 1 if one has, 2 for wrong options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nvrx_core.errors import ConfigurationError
from nvrx_core.health.probes import CHECKS, enabled_checks
from nvrx_core.health.result import CheckResult, HealthReport, Status
from nvrx_core.health.runner import check_node
from nvrx_core.health.settings import HealthSettings, check_endpoint
from nvrx_core.process.standard_output import show

__all__ = ["main"]

HEAD = ("check", "what", "result", "reason")


def main(argv: Sequence[str] | None = None) -> int:
    """Check the node and print the results; return 0 if no check has failed, 1 if one has, 2 for wrong options."""
    parser = argparse.ArgumentParser(
        "nvrx-health", usage="%(prog)s [options]", description="Check the health of this node.", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="Print the results as one line of JSON.")
    parser.add_argument(
        "--only", metavar="CHECK,...", help=f"Run these checks alone, enabled or not: {', '.join(CHECKS)}."
    )
    HealthSettings.add_arguments(parser)
    args, unknown = parser.parse_known_args(argv)
    try:
        HealthSettings.refuse_unknown_flags(unknown)
        settings = HealthSettings.from_args(args, ignore_not_recognized=True)
        check_endpoint(settings.node_health_check_endpoint)
        checks = enabled_checks(settings) if args.only is None else _named(args.only, settings)
    except ConfigurationError as error:
        print(f"nvrx-health: error: {error}", file=sys.stderr)
        return error.exit_code
    if unknown:
        parser.error(f"unknown argument {unknown[0]}")
    try:
        report = check_node(settings, checks) if checks else HealthReport(())
    except OSError as error:  # a node that has no process left for its checks is not known to be unhealthy
        reason = f"the checks cannot be run: {error.strerror}"
        report = HealthReport((CheckResult("health", "", Status.UNKNOWN, reason),))
    strict = settings.health_strict
    show(report.to_json(strict=strict) if args.json else "\n".join(_table(report, strict=strict)))
    return int(report.status(strict=strict) is Status.UNHEALTHY)


def _named(text: str, settings: HealthSettings) -> tuple[str, ...]:
    """Return the checks of `--only`.

    Raises:
        ConfigurationError: when one does not exist, or has nothing to check by these settings.
    """
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in CHECKS]:
        advice = f"write some of {','.join(CHECKS)}"
        raise ConfigurationError("command line", "--only", f"there is no check {unknown[0]!r}", advice)
    missing = [name for name in ("storage", "service") if name in names and name not in enabled_checks(settings)]
    if missing:
        needed = {
            "storage": "--ft-storage-healthcheck-path or --ft-enable-dist-storage-healthcheck true",
            "service": "--ft-node-health-check-endpoint",
        }[missing[0]]
        raise ConfigurationError("command line", "--only", f"{missing[0]} has nothing to check", f"give {needed}")
    return tuple(name for name in CHECKS if name in names)


def _table(report: HealthReport, *, strict: bool) -> list[str]:
    """Return the lines of a table, and the outcome for the node."""
    rows = [HEAD, *((each.check, each.subject, each.status.value, each.reason) for each in report.results)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:{widths[2]}}  {row[3]}" for row in rows]
    failed = report.failures(strict=strict)
    outcome = f"{len(failed)} failed" if failed else "none failed" if report.results else "nothing to check"
    return [*(lines if report.results else []), f"{report.status(strict=strict).value}: {outcome}"]


if __name__ == "__main__":
    sys.exit(main())
