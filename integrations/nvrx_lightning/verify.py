"""The command `python -m nvrx_lightning.verify`; the function of this name is in `verification.function`.

The module can be called like the function: an import of it replaces the function as attribute of the package.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__: list[str] = []


class _CallableModule(ModuleType):
    def __call__(self, make: Any, **settings: Any) -> Any:
        """Call `nvrx_lightning.verification.function.verify`."""
        from nvrx_lightning.verification.function import verify

        return verify(make, **settings)


if __name__ == "__main__":
    from nvrx_lightning.verification.command import main

    sys.exit(main())
else:
    sys.modules[__name__].__class__ = _CallableModule
