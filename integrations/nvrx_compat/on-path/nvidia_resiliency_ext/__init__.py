"""nvrx under the names of nvidia-resiliency-ext; the local version label identifies nvrx."""

from nvrx_core import __version__ as _nvrx_version

__all__ = ["__version__"]

__version__ = f"0.6.0+nvrx.{_nvrx_version}"
