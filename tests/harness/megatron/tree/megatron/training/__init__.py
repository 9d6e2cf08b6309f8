"""A stand-in; see README.md of the tree."""

from .global_vars import get_args as get_args
from .training import pretrain as pretrain
