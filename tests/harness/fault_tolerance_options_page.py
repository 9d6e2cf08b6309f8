"""Generator of docs/reference/fault-tolerance-options.md, from the declarations of `FaultToleranceConfig`.

Regenerate: python -m tests.harness.fault_tolerance_options_page > docs/reference/fault-tolerance-options.md
"""

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.health.settings import HealthSettings
from nvrx_core.settings.parameter import Declaration, declarations, default_of

__all__ = ["page"]

HEAD = """\
# Options of fault tolerance

Each option is a field of `nvrx_core.fault_tolerance.FaultToleranceConfig`, a key of a YAML file, an environment
variable and a flag:

| where | how |
|---|---|
| in Python | `FaultToleranceConfig(rank_heartbeat_timeout=60.0)` |
| in a YAML file | `rank_heartbeat_timeout: 60.0` in the first mapping named `fault_tolerance`, at any depth |
| as a variable | `NVRX_FT_RANK_HEARTBEAT_TIMEOUT=60.0`; an empty variable is not set |
| as a flag | `--ft-rank-heartbeat-timeout 60.0` |

A flag has more spellings: `--ft_rank_heartbeat_timeout`, `--ft-rank_heartbeat_timeout`, and each with `param`
behind `ft`, as in `--ft-param-rank_heartbeat_timeout`.

A flag wins over a variable, a variable over the file, the file over the default. `explain()` says where each value
comes from: `ft.yaml:3`, `NVRX_FT_LOG_LEVEL`, `--ft-log-level`, `code` or `default`. The file is named by
`--ft-cfg-path` (also `--fault-tol-cfg-path`, `NVRX_FT_CFG_PATH`). `--ft-ignore-missing-cfg` (also
`--ignore-missing-fault-tol-cfg`, `NVRX_FT_IGNORE_MISSING_CFG=true`) accepts that the file, or the mapping in it,
is missing.

`from_args` and `from_environment` read all of these, `from_yaml_file` reads a file and variables. The constructor
and `from_kwargs` take values of Python alone. A value that is wrong, or a name that does not exist, is a
`ConfigurationError`. It has one line, such as

```text
ft.yaml:3: rank_heartbeat_timeout: '10m' is not allowed,
it must be a number of seconds; write 600
```

`python -m nvrx_core.fault_tolerance.explain` takes all flags, prints each value and where it comes from, and exits
with code 2 and that line when one is wrong.

A time is a number of seconds. `none`, `null` and empty text mean no limit, where none is allowed.
"""
TABLE = """
| option | default | value | what it is for |
|---|---|---|---|
"""
HEALTH = """
## Health checks

What [`nvrx-health`](commands.md#nvrx-health) takes as well: [Check the health of a node](../how-to/node-health.md).
"""


def page() -> str:
    """The page's text."""
    rows = {
        name: row(name, default_of(field), each) for name, (field, each) in declarations(FaultToleranceConfig).items()
    }
    health = "".join(rows.pop(name) for name in declarations(HealthSettings))
    return HEAD + TABLE + "".join(rows.values()) + HEALTH + TABLE + health


def row(name: str, default: object, declared: Declaration) -> str:
    """An option's line; its names are written out, so that a search finds each."""
    spelling = FaultToleranceConfig.spelling
    flags = [spelling.flag(each) for each in (name, *declared.aliases)]
    names = "<br>".join(f"`{each}`" for each in (name, *flags, spelling.variable(name)))
    return f"| {names} | `{declared.shown(default)}` | {value_of(declared)} | {declared.help} |\n"


def value_of(declared: Declaration) -> str:
    """What a value must be."""
    rule = f", {declared.rule.text}" if declared.rule is not None else ""
    return f"{declared.form.text}{rule}{', or none' if declared.optional else ''}"


if __name__ == "__main__":
    print(page(), end="")
