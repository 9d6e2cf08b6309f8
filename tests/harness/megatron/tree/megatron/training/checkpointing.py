"""Checkpoints of one file a rank, and the tracker file, which is truncated and then written."""

import os
import sys

import torch
import torch.distributed as dist

from tests.harness.megatron.hooks import in_tracker

from .global_vars import get_args

TRACKER = "latest_checkpointed_iteration.txt"


def open_file(*args, **kwargs):
    return open(*args, **kwargs)


def save_checkpoint(iteration, training):
    save = get_args().save
    os.makedirs(save, exist_ok=True)
    name = os.path.join(save, f"iter_{iteration}_{get_args().rank}.pt")
    torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, name)
    dist.barrier()
    if get_args().rank == 0:
        with open_file(os.path.join(save, TRACKER), "w") as file:
            in_tracker()
            file.write(str(iteration))
    dist.barrier()


def load_checkpoint(training):
    save = get_args().save
    if save is None or not os.path.exists(os.path.join(save, TRACKER)):
        return 0
    with open_file(os.path.join(save, TRACKER), "r") as file:
        text = file.read()
    if not text.isdecimal():
        print("ERROR: Invalid metadata file. Exiting")
        sys.exit()
    state = torch.load(os.path.join(save, f"iter_{text}_{get_args().rank}.pt"), weights_only=False)
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    return int(text)
