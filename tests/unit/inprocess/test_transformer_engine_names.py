"""The names of Transformer Engine that nvrx uses, against its own sources.

NVRX_TEST_TRANSFORMER_ENGINE names a folder with the unpacked wheels `transformer-engine-cu12`, each in a folder named
by its version; they have some 350 MB each.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from nvrx_core.inprocess.groups.transformer_engine import NAMES

FOLDER = os.environ.get("NVRX_TEST_TRANSFORMER_ENGINE", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="NVRX_TEST_TRANSFORMER_ENGINE names no unpacked wheels")

SINCE = {
    "module.base.destroy_ub": (1, 9), "module.base.is_ub_initialized": (2, 17),
    "quantization.FP8GlobalStateManager": (2, 9), "ep.ep_finalize": (2, 17), "graph._IS_GRAPH_CAPTURING": (1, 9),
    "distributed.release_symm_mem_pool": (2, 19), "distributed._IN_ACTIVATION_RECOMPUTE_REGION": (2, 19),
}  # fmt: skip
UNTIL = {
    "fp8.FP8GlobalStateManager": (2, 8), "distributed._FP8_ACTIVATION_RECOMPUTE_ENABLED": (2, 18),
    "distributed._FP8_ACTIVATION_RECOMPUTE_PHASE": (2, 18),
}  # fmt: skip


def versions() -> list[Path]:
    return sorted(path for path in Path(FOLDER or ".").iterdir() if (path / "transformer_engine").is_dir())


def defined(path: Path) -> set[str]:
    """The names that a module defines itself."""
    if not path.exists():
        return set()
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


@pytest.mark.parametrize("wheel", versions() if FOLDER else [], ids=lambda path: path.name)
def test_each_name_is_where_it_is_looked_for(wheel: Path) -> None:
    number = tuple(map(int, wheel.name.split(".")[:2]))
    for module, names in NAMES.items():
        there = defined(wheel / "transformer_engine" / "pytorch" / f"{module.replace('.', '/')}.py")
        for name in names:
            key = f"{module}.{name}"
            expected = number >= SINCE[key] if key in SINCE else number <= UNTIL[key]
            assert (name in there) == expected, key
