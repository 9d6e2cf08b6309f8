"""`python -m nvrx_launcher`."""

from __future__ import annotations

import sys

from nvrx_launcher.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
