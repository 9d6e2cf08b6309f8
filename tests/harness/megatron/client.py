"""The client of Megatron-LM's stand-in: nvrx's, with a rank monitor of its own; it records what is done with it."""

from __future__ import annotations

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorClient
from nvrx_core.fault_tolerance.local import LocalMonitor
from nvrx_core.progress.page import ProgressField, SectionField
from tests.harness.process.workers.record import Record

__all__ = ["Client"]

record = Record.of_environment()


class Client(RankMonitorClient):
    """Records when it was made and shut down, and what its page holds then."""

    def __init__(self) -> None:
        super().__init__()
        record("client", what_happened="made")

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        self.local_monitor = LocalMonitor(FaultToleranceConfig())
        super().init_workload_monitoring(num_warmup_iters)

    def shutdown_workload_monitoring(self) -> None:
        words = self.page.words
        sections = {name: words[slot + SectionField.COUNT] for name, slot in self.page.sections().items()}
        warmup = self.page[ProgressField.WARMUP_STEPS]
        record("client", what_happened="shut down", warmup=warmup, sections=sections)
        super().shutdown_workload_monitoring()
