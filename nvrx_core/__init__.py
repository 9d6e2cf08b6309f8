"""Fault tolerance for PyTorch; `from nvrx_core import inprocess` restarts a training inside its processes.

Importing this package imports nothing else: each package is loaded on first access.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
