"""A rank monitor's client without a monitor: it says how often it was made and shut down."""

from tests.harness.process.workers.record import Record

__all__ = ["Client"]

record = Record.of_environment()


class Client:
    """Records what is done with it."""

    def __init__(self) -> None:
        record("client", what_happened="made")

    def shutdown_workload_monitoring(self) -> None:
        record("client", what_happened="shut down")
