"""`python -m nvrx_launcher`."""

from __future__ import annotations

from nvrx_launcher.cli import run

__all__ = ["run"]

if __name__ == "__main__":
    run()
