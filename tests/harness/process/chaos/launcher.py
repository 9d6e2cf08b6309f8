"""The launcher, whose threads write their stacks to the file NVRX_TEST_STACKS on SIGUSR2."""

from __future__ import annotations

import faulthandler
import os
import signal

from nvrx_launcher.cli import run

if __name__ == "__main__":
    stacks = open(os.environ["NVRX_TEST_STACKS"], "w")  # noqa: SIM115 - until the process ends
    faulthandler.register(signal.SIGUSR2, stacks)
    run()
