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


def page() -> str:
    files = sorted(FOLDER.rglob("*.py"), key=lambda path: path.relative_to(FOLDER).with_suffix("").parts)
    return HEAD + "".join(filter(None, map(row, files))) + section()


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
    return next(module for module in modules if module.startswith("nvrx_"))


if __name__ == "__main__":
    print(page(), end="")
