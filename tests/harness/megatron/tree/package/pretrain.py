"""A script of a package, with nvrx's line at its top."""

import nvrx_megatron

nvrx_megatron.enable()

import pathlib  # noqa: E402
import runpy  # noqa: E402

from .settings import SCRIPT  # noqa: E402

runpy.run_path(str(pathlib.Path(__file__).parents[1] / SCRIPT), run_name="__main__")
