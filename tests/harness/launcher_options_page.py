"""Generator of docs/reference/launcher-options.md, from the declarations of the command line.

Regenerate: python -m tests.harness.launcher_options_page > docs/reference/launcher-options.md
"""

from nvrx_launcher.arguments import OPTIONS
from nvrx_launcher.declared_options import Option
from nvrx_launcher.rendezvous_settings import KEYS, Key

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
torch or nvidia-resiliency-ext have and that would have no effect here. `etcd`, torch's own, has keys of its own, and of
these `close_timeout` and `same_command`.

| key | meaning | default |
|---|---|---|
"""


def page() -> str:
    """The page's text."""
    theirs = "".join(row(option) for option in OPTIONS if option.is_torchruns)
    ours = "".join(row(option) for option in OPTIONS if not option.is_torchruns)
    return HEAD + theirs + OURS + ours + RENDEZVOUS + "".join(map(row_of_key, KEYS))


def row_of_key(key: Key) -> str:
    """The line of a key of --rdzv-conf."""
    only = f"{' and '.join(f'`{each}`' for each in key.backends)} only. " if len(key.backends) < 3 else ""
    return f"| `{key.name}` | {only}{key.help} | {key.default} |\n"


def row(option: Option) -> str:
    """An option's line."""
    names = f"`-{option.short}`, `--{option.name}`" if option.short else f"`--{option.name}`"
    choices = f" One of {', '.join(f'`{each}`' for each in option.choices)}." if option.choices else ""
    return f"| {names} | `PET_{option.dest.upper()}` | {default(option)} | {option.help}{choices} |\n"


def default(option: Option) -> str:
    """Its default; a flag has none."""
    return "" if option.form is None or option.default in (None, "", ()) else f"`{option.default}`"


if __name__ == "__main__":
    print(page(), end="")
