"""The flat parameters of FSDP1, which autograd's nodes keep alive when a step is interrupted.

In the forward pass FSDP1 makes views of each flat parameter, whose nodes refer to it, and refers to them from the
parameter and its modules; it adds to the node of the parameter's gradient a hook that refers to the parameter. At the
end of the backward pass it removes them. Between the two they are cycles through autograd's nodes, in which the garbage
collection does not see a reference: they would keep the parameters on the device until the process ends. Without
`use_orig_params` the views stay for as long as the model.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["cut_cycles"]

HOOK = "_post_backward_hook_state"


def cut_cycles(model: torch.nn.Module) -> None:
    """Remove the hooks and views of the flat parameters of a model, if it has any; it cannot be used afterwards."""
    for module in model.modules():
        parameter = getattr(getattr(module, "_handle", None), "flat_param", None)
        if parameter is not None:
            if HOOK in vars(parameter):
                vars(parameter).pop(HOOK)[-1].remove()
            _remove_views(parameter)


def _remove_views(parameter: Any) -> None:
    parameter._tensors = None
    for name, module, *_ in (*parameter._param_infos, *parameter._shared_param_infos):
        for holder in (vars(module), module._parameters):
            if not isinstance(holder.get(name), torch.nn.Parameter):
                holder.pop(name, None)
