"""Names that code refers to without using them, for what nvrx does not have: to use one is an error that says so."""

from __future__ import annotations

__all__ = ["StragglerDetectionCallback"]


class StragglerDetectionCallback:
    """Stands for the callback that NeMo names in its recipes, also where none is made.

    Raises:
        NotImplementedError: when one is made.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(
            "nvrx has no StragglerDetectionCallback; leave it out of the callbacks, or install nvidia-resiliency-ext"
        )
