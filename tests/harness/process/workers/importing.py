"""Rank 0 fails while rank 1 imports a package, for longer than the hard timeout; each of its modules takes a while."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from tests.harness.process.workers.record import Record

SHORT = {"soft_timeout": 1.5, "hard_timeout": 3.0}
MODULES, EACH = 16, 0.3
PACKAGE = "package_of_many_modules"


def main() -> None:
    record, rank = Record.of_environment(), os.environ["RANK"]
    settings: dict[str, Any] = {name: timedelta(seconds=seconds) for name, seconds in SHORT.items()}
    sys.path.insert(0, os.environ["TMPDIR"])
    if rank == "1":
        write_package(Path(os.environ["TMPDIR"], PACKAGE))

    @inprocess.Wrapper(**settings)
    def train(call: CallWrapper) -> int:
        if rank == "1":
            record("importing", iteration=call.iteration)
            __import__(PACKAGE)
        elif call.iteration == 0:
            record.await_others(1, "importing")
            raise RuntimeError("while its peer imports")
        return call.iteration

    record("done", result=train(), modules=sum(name.startswith(f"{PACKAGE}.") for name in sys.modules))


def write_package(folder: Path) -> None:
    folder.mkdir()
    names = [f"part_{number}" for number in range(MODULES)]
    for name in names:
        (folder / f"{name}.py").write_text(f"import time\n\ntime.sleep({EACH})\n")
    (folder / "__init__.py").write_text("".join(f"from . import {name}\n" for name in names))


if __name__ == "__main__":
    main()
