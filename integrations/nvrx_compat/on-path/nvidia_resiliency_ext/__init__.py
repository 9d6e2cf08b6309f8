"""nvrx under the names of nvidia-resiliency-ext; the local version label identifies nvrx.

Megatron-LM, which imports this package before its own module of in-process restart, is watched for that module.
"""

from nvrx_megatron.takeover import watch_for_megatron as _watch_for_megatron

from nvrx_core import __version__ as _nvrx_version

__all__ = ["__version__"]

__version__ = f"0.6.0+nvrx.{_nvrx_version}"

_watch_for_megatron()
