"""For every interpreter of a job of Megatron-LM, its spawned ones, too: what newer versions want of a newer Python."""

import typing

if not hasattr(typing, "override"):  # Python 3.12
    typing.override = lambda function: function  # type: ignore[attr-defined]
