"""Generator of docs/reference/compatible-names.md, from the files of nvrx's `nvidia_resiliency_ext`.

Regenerate: python -m tests.harness.compatible_names_page > docs/reference/compatible-names.md
"""

import ast
from pathlib import Path

from tests.harness.compatible_faults_section import section

__all__ = ["page"]

FOLDER = Path(__file__).parents[2] / "integrations" / "nvrx_compat" / "on-path"
HEAD = """\
# Names of nvidia-resiliency-ext

The modules and names of `nvidia_resiliency_ext` that nvrx has, [where they are put on the
path](../how-to/from-nvidia-resiliency-ext.md#without-a-change). Each is the object of nvrx that the last column
names. `inprocess` and `fault_tolerance` also have their modules as attributes.

| module | names | of |
|---|---|---|
"""
NOT_HERE = """
## Names that are not here

`FaultToleranceConfig.from_kwargs` and `from_yaml_file` take `ignore_not_recognized`; it is off by default, because a
misspelt timeout is one that is not there. `wait_for_mp_events` returns whether all events are set in time: no document
states what it does there.

These names of nvidia-resiliency-ext have no twin, on purpose:

| names | why |
|---|---|
| `checkpointing` | not a part of nvrx; Megatron-LM notices its absence and uses its own, or needs `--non-persistent-ckpt-type` other than `local` |
| `attribution`, `straggler`, `ptl_resiliency.local_checkpoint_callback`, what `ptl_resiliency.StragglerDetectionCallback` does | not a part of nvrx; Megatron-Bridge and NeMo import them where their own options ask for them. Under `ft_launcher` [slow ranks are named](../how-to/rank-monitors.md#stragglers) by their sections, without these names |
| `fault_tolerance.dict_utils` | its one importer in NeMo, `local_ckpt.py`, needs `checkpointing.local` as well; megatron-core has the function in `dist_checkpointing.dict_utils` |
| `inprocess.param_utils`, `inprocess.utils`, `inprocess.tcp_utils`, `inprocess.logging` | what the wrapper does inside; a test of Megatron-Bridge imports the first |
| the messages of a rank and its monitor in `fault_tolerance.data` (`InitMsg`, `HeartbeatMsg`, `SectionMsg`, `OkMsg` ...) | they are pickled on a socket there; here a heartbeat is a word in shared memory, and messages are JSON |
| the rest of `fault_tolerance.utils`, `fault_tolerance.ipc_connector` | what its launcher and its monitors do inside: streams, process groups, logs |

A unit test that reaches for one of these tests that implementation, and does not run here.
`ptl_resiliency.StragglerDetectionCallback` is a name only, which recipes of NeMo refer to: to make one is an error.
"""  # noqa: E501 - a row of a table is a line


def page() -> str:
    files = sorted(FOLDER.rglob("*.py"), key=lambda path: path.relative_to(FOLDER).with_suffix("").parts)
    return HEAD + "".join(filter(None, map(row, files))) + NOT_HERE + section()


def row(path: Path) -> str:
    """A line of the table; none for a package of modules alone."""
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname or alias.name: node.module for node in imports for alias in node.names}
    names = [name for name in offered(tree) if not is_module(path, name)]
    if not names:
        return ""
    module = ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__init__")
    sources = sorted({homes[name] for name in names if name in homes} - {None}) or [target(tree)]
    return f"| `{module}` | {listed(names)} | {listed(sources)} |\n"


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def offered(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def is_module(path: Path, name: str) -> bool:
    beside = path.parent / f"{name}.py"
    return (beside.exists() and beside != path) or (path.parent / name).is_dir()


def target(tree: ast.Module) -> str:
    """The module whose attributes a file re-exports."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [f"{n.module}.{n.names[0].name}" if isinstance(n, ast.ImportFrom) else n.names[0].name for n in found]
    return min(module for module in modules if module.startswith("nvrx_"))


if __name__ == "__main__":
    print(page(), end="")
