# The messages of nvhcd.proto, whose classes nvhcd_pb2.py makes when it is imported.
from collections.abc import Iterable
from typing import Self

class HealthCheckRequest:
    args: list[str]
    def __init__(self, *, args: Iterable[str] = ...) -> None: ...
    def SerializeToString(self) -> bytes: ...  # noqa: N802
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...  # noqa: N802

class HealthCheckResponse:
    success: bool
    exit_code: int
    output: str
    error: str
    def __init__(self, *, success: bool = ..., exit_code: int = ..., output: str = ..., error: str = ...) -> None: ...
    def SerializeToString(self) -> bytes: ...  # noqa: N802
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...  # noqa: N802
