"""The same script, with nvrx's line at its top."""

import nvrx_megatron

nvrx_megatron.enable()

import pathlib  # noqa: E402
import runpy  # noqa: E402

runpy.run_path(str(pathlib.Path(__file__).with_name("pretrain_gpt.py")), run_name="__main__")
