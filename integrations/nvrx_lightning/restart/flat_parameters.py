"""The flat parameters of FSDP1, which its own hooks keep alive when a step is interrupted.

In the forward pass FSDP1 adds to the gradient of each flat parameter a hook that refers to the parameter; it removes it
at the end of the backward pass. Between the two they are a cycle through autograd's nodes, in which the garbage
collection does not see a reference: it would keep the parameters on the device until the process ends.
"""

from __future__ import annotations

import torch

__all__ = ["remove_hooks"]

HOOK = "_post_backward_hook_state"


def remove_hooks(model: torch.nn.Module) -> None:
    """Remove the hooks that an interrupted step has left on the flat parameters of a model, if it has any."""
    for module in model.modules():
        parameter = getattr(getattr(module, "_handle", None), "flat_param", None)
        if parameter is not None and HOOK in vars(parameter):
            vars(parameter).pop(HOOK)[-1].remove()
