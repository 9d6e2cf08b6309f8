"""A rank monitor client without a monitor: it counts how often it was created and shut down."""

from tests.harness.process.workers.record import Record

__all__ = ["Client"]

record = Record.of_environment()


class Client:
    """Records its calls."""

    def __init__(self) -> None:
        record("client", what_happened="made")

    def shutdown_workload_monitoring(self) -> None:
        record("client", what_happened="shut down")
