"""Where the function under test is: the processes of the verification import it by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvrx_lightning.verification.errors import VerificationError

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """A function at the top level of a module, or a method of a class there.

    Attributes:
        module: the module's name; "" for a file that is no importable module.
        file: the module's file; "" if the name says it all.
        name: the function's qualified name.
    """

    module: str
    file: str
    name: str

    @classmethod
    def of(cls, make: object) -> Source:
        """Find a function.

        Raises:
            VerificationError: for what other processes cannot import.
        """
        if not callable(make):
            raise VerificationError(
                f"verify() needs the function that makes a Trainer and a module, not {make!r}: "
                "write `def make(): return trainer, module, loader` and `verify(make)`"
            )
        name, module = getattr(make, "__qualname__", ""), sys.modules.get(getattr(make, "__module__", ""))
        if not inspect.isroutine(make) or "<" in name or module is None:
            raise VerificationError(
                f"the processes of a verification import the function by its name, which {make!r} does not have: "
                "write it as a `def` at the top level of a file"
            )
        file = getattr(module, "__file__", None)
        if module.__name__ != "__main__":
            found = importlib.util.find_spec(module.__name__) if module.__name__ in sys.modules else None
            return cls(module.__name__, file or "", name) if found is not None else cls("", file or "", name)
        if file is None:
            raise VerificationError("an interactive session cannot be imported: write the function into a file")
        return cls("", str(Path(file).resolve()), name)

    @classmethod
    def parse(cls, text: str) -> Source:
        """Parse `path/to/file.py:make` or `package.module:make`.

        Raises:
            VerificationError: if it is neither.
        """
        where, _, name = text.rpartition(":")
        if not where or not name:
            raise VerificationError(f"{text!r} names no function: write path/to/file.py:make or package.module:make")
        if not where.endswith(".py"):
            return cls(where, "", name)
        if not Path(where).is_file():
            raise VerificationError(f"there is no file {where}")
        return cls("", str(Path(where).resolve()), name)

    def load(self) -> Callable[[], Any]:
        """Import the function.

        Raises:
            VerificationError: if there is no such function.
        """
        try:
            found: Any = self._import()
        except ModuleNotFoundError as error:
            if error.name not in (self.module, self.module.partition(".")[0]):
                raise
            raise VerificationError(f"there is no module {self.module}: {error}") from None
        for part in self.name.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            raise VerificationError(f"{self.file or self.module} has no function {self.name} at its top level")
        return found  # type: ignore[no-any-return]

    def _import(self) -> Any:
        if self.module:
            return importlib.import_module(self.module)
        file = Path(self.file)
        sys.path.insert(0, str(file.parent))
        name = file.stem if file.stem not in sys.modules else f"nvrx_verified_{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise VerificationError(f"{file} is no Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"
