"""A launcher with faults at its failpoints: NVRX_FAILPOINTS, with RANK for which launcher it is."""

from __future__ import annotations

import os

from nvrx_launcher.cli import run

from nvrx_core.testing import failpoints

if __name__ == "__main__":
    failpoints.install_from_env(os.environ)
    for name in (failpoints.SCHEDULE, "RANK"):  # for this process only
        os.environ.pop(name, None)
    run()
