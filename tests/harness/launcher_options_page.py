"""Generator of docs/reference/launcher-options.md, from the declarations of the command line.

Regenerate: python -m tests.harness.launcher_options_page > docs/reference/launcher-options.md
"""

from nvrx_launcher.arguments import OPTIONS, Option

__all__ = ["page"]

HEAD = """\
# Options of ft_launcher

The options of [`ft_launcher`](../how-to/launcher.md) beside those of [fault tolerance](fault-tolerance-options.md).
Each may be written with underscores, too, as in `--max_restarts`, and has a variable. An option wins over its variable,
a variable over the default; `--ft-explain` prints each value and where it comes from. What torchrun's options do
differently here: [From torchrun](../how-to/from-torchrun.md#options).

| option | variable | default | meaning |
|---|---|---|---|
"""
OURS = """
## Beside those of torchrun

| option | variable | default | meaning |
|---|---|---|---|
"""

RENDEZVOUS = """
## Settings of the rendezvous

`--rdzv-conf <key>=<value>,<key>=<value>`. A key that is not known ends the launcher with code 2, and so does one that
torch or nvidia-resiliency-ext have and that would have no effect here. `static` has none that say where to host.
`etcd`, torch's own, has keys of its own, and of these `close_timeout` and `same_command`.

| key | meaning | default |
|---|---|---|
| `join_timeout`, `timeout` | seconds within which `--nnodes` minimum nodes must have joined, at each cycle | 600 |
| `last_call_timeout` | seconds that the first cycle waits for more nodes than the minimum | 1 |
| `store_connect_wait_seconds` | seconds that a launcher waits for the one that hosts the rendezvous | `join_timeout` |
| `read_timeout` | seconds for a request to the store; a slower one is made again over another connection | 30 |
| `close_timeout` | seconds that the host of the rendezvous waits at the end until all others have heard of it | 5 |
| `keep_alive_interval` | seconds between two signs of life, 0.1 or more | 1 |
| `keep_alive_max_attempt` | how many may be missing before a node is lost, 2 or more | 5 |
| `same_command` | 0: launchers may run different commands; 1: they must not | a warning |
| `is_host` | `c10d` only. 1: this launcher must host the rendezvous; 0: it must not | who can |
| `store_type`, `use_libuv` | `c10d` only. `tcp`, `1`: anything else is refused | |
| `protocol`, `ca_cert`, `ssl_cert`, `ssl_cert_key` | `etcd-v2` only. `http`, or `https` and its files | `http` |
"""


def page() -> str:
    """The page's text."""
    theirs = "".join(row(option) for option in OPTIONS if option.is_torchruns)
    ours = "".join(row(option) for option in OPTIONS if not option.is_torchruns)
    return HEAD + theirs + OURS + ours + RENDEZVOUS


def row(option: Option) -> str:
    """An option's line."""
    names = f"`-{option.short}`, `--{option.name}`" if option.short else f"`--{option.name}`"
    choices = f" One of {', '.join(f'`{each}`' for each in option.choices)}." if option.choices else ""
    return f"| {names} | `PET_{option.dest.upper()}` | {default(option)} | {option.help}{choices} |\n"


def default(option: Option) -> str:
    """Its default; a flag has none."""
    return "" if option.kind is None or option.default in (None, "", ()) else f"`{option.default}`"


if __name__ == "__main__":
    print(page(), end="")
