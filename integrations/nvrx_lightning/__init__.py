"""PyTorch Lightning integration: a callback for the rank monitor and strategies that restart a fit in its processes.

Importing it registers the strategies' names (`Trainer(strategy="ddp_inprocess")`) and imports nothing else; the names
below are imported on first access, for the Lightning package that the process uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nvrx_lightning.registration import register

if TYPE_CHECKING:
    from nvrx_lightning.callback import FaultToleranceCallback, FaultToleranceSectionsCallback
    from nvrx_lightning.monitoring.faults import SimulatedFaultParams
    from nvrx_lightning.strategy import InProcessStrategy, in_process
    from nvrx_lightning.verification.function import verify

    class InProcessDDPStrategy(InProcessStrategy, Any):  # type: ignore[misc]
        """Lightning's `DDPStrategy` of the family in use, with in-process restart."""

    class InProcessFSDPStrategy(InProcessStrategy, Any):  # type: ignore[misc]
        """Lightning's `FSDPStrategy` of the family in use, with in-process restart."""

    class InProcessModelParallelStrategy(InProcessStrategy, Any):  # type: ignore[misc]
        """Lightning's `ModelParallelStrategy` of the family in use, with in-process restart."""


__all__ = [
    "FaultToleranceCallback",
    "FaultToleranceSectionsCallback",
    "InProcessDDPStrategy",
    "InProcessFSDPStrategy",
    "InProcessModelParallelStrategy",
    "SimulatedFaultParams",
    "in_process",
    "verify",
]  # fmt: skip

_HOME = {
    "FaultToleranceCallback": "callback",
    "FaultToleranceSectionsCallback": "callback",
    "SimulatedFaultParams": "monitoring.faults",
    "in_process": "strategy",
    "verify": "verification.function",
}

register()


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        if name.startswith("InProcess") and name in __all__:
            from nvrx_lightning.families import preferred
            from nvrx_lightning.strategy import strategy_class

            return strategy_class(name, preferred())
        from nvrx_core.settings.spelling import no_such_name

        raise no_such_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
