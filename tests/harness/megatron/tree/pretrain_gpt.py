"""A script in the shape of Megatron-LM's: it wraps `pretrain`, and calls it."""

import warnings

from megatron.training import inprocess_restart, pretrain
from megatron.training.arguments import SHAPE, parse_and_validate_args

shown = warnings.showwarning


def show_warning(*args, **kwargs):
    shown(*args, **kwargs)


if __name__ == "__main__":
    warnings.showwarning = show_warning  # as scripts do; it refers to all globals
    pretrain, store = inprocess_restart.maybe_wrap_for_inprocess_restart(pretrain)
    if SHAPE == "0.18":
        parse_and_validate_args()
    pretrain(store=store)
