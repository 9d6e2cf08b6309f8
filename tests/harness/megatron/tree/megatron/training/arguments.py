"""The flags; RANK is read where they are parsed."""

import argparse
import os

import nvrx_megatron

from .global_vars import set_args

SHAPE = os.environ.get("NVRX_TEST_SHAPE", "0.18")


def parse_args(extra_args_provider=None, ignore_unknown_args=False):
    parser = nvrx_megatron.add_arguments(argparse.ArgumentParser(allow_abbrev=False))
    parser.add_argument("--train-iters", type=int, default=6)
    parser.add_argument("--save")
    parser.add_argument("--save-interval", type=int, default=2)
    parser.add_argument("--eval-interval", type=int, default=0)
    parser.add_argument("--enable-ft-package", action="store_true")
    parser.add_argument("--ft-num-warmup-iters", type=int, default=5)
    parser.add_argument("--exit-at", type=int, default=-1)
    parser.add_argument("--async-strategy", default="nvrx")
    args = parser.parse_known_args()[0] if ignore_unknown_args else parser.parse_args()
    args.rank, args.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return args


def parse_and_validate_args():
    args = parse_args()
    args.curr_iteration = 0
    set_args(args)
    return args
