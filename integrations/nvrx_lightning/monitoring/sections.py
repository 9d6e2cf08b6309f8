"""The sections of a training, and the profiler actions that delimit them. Pure.

| section | open |
|---|---|
| `setup` | from the callback's `setup` to the first batch: model, checkpoint, sanity check |
| `data` | while a training batch is fetched |
| `step` | while a batch is trained on: forward, backward, gradient synchronisation, optimizer |
| `validation` | from the start of a validation run to its end |
| `checkpointing` | while a checkpoint is gathered and written |
| `teardown` | from the end of the training to the end of `fit` |
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

__all__ = [
    "CHECKPOINTING", "DATA", "PHASES", "REPEATED", "SECTIONS", "SETUP", "STEP", "TEARDOWN", "VALIDATION", "phase_of",
    "section_of", "sections_in_use",
]  # fmt: skip

SETUP: Final = "setup"
DATA: Final = "data"
STEP: Final = "step"
VALIDATION: Final = "validation"
CHECKPOINTING: Final = "checkpointing"
TEARDOWN: Final = "teardown"
SECTIONS: Final = frozenset({SETUP, DATA, STEP, VALIDATION, CHECKPOINTING, TEARDOWN})
REPEATED: Final = (DATA, STEP, VALIDATION, CHECKPOINTING)
"""The sections whose timeouts each training can learn: they are open again and again."""
_ALWAYS: Final = frozenset({SETUP, STEP, CHECKPOINTING})

PHASES: Final = ("setup", "data", "forward", "backward", "optimizer", "validation", "checkpointing", "teardown")
"""Where a simulated fault can be injected."""

_ACTIONS: Final = {"run_training_batch": STEP, "save_checkpoint": CHECKPOINTING}
_HOOKS: Final = {
    ("[Strategy]", "training_step"): "forward",
    ("[Strategy]", "backward"): "backward",
    ("[LightningModule]", "on_before_optimizer_step"): "optimizer",
}
"""Actions named after the object and the hook, such as `[Strategy]DDPStrategy.backward`."""
_FETCH: Final = "train_dataloader_next"


def section_of(action: str) -> str:
    """Return the section that a profiler action delimits; "" for none."""
    return DATA if action.rpartition(".")[2] == _FETCH else _ACTIONS.get(action, "")


def phase_of(action: str) -> str:
    """Return the phase of the training that begins with a profiler action; "" for none."""
    who, _, hook = action.rpartition(".")
    called = _HOOKS.get((who.partition("]")[0] + "]", hook), "")
    return called or (section if (section := section_of(action)) in PHASES else "")


def sections_in_use(configured: Collection[str], out_of_section: float | None) -> frozenset[str]:
    """Return the sections to open.

    An open section suspends the out-of-section timeout. Where that timeout is configured, a section that the
    configuration does not name would hide a hang, so it is not opened; the three sections of nvidia-resiliency-ext
    always are.

    Args:
        configured: the names in `rank_section_timeouts`.
        out_of_section: `rank_out_of_section_timeout`; None for none.
    """
    return SECTIONS if out_of_section is None else _ALWAYS | (SECTIONS & set(configured))
