"""Invalid fault tolerance configurations (bad_configurations.txt), each with the error that it must raise.

To measure the times, and whether torch is imported: python -m tests.harness.bad_configurations
"""

import argparse
import pathlib
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance.config import FaultToleranceConfig

__all__ = ["BAD", "Bad"]

TABLE: Final = pathlib.Path(__file__).with_suffix(".txt")
MADE: Final = {
    "latin-1": "fault_tolerance:\n  # comments\n  # häufig\n".encode("latin-1"),
    "deep": b"[" * 5000,
    "huge": b"#" * (1 << 21),
}


@dataclass(frozen=True)
class Bad:
    """An invalid configuration.

    Attributes:
        name: what is wrong with it.
        body: the lines of its block, without the error.
        line: the error; FILE stands for the path of the file.
    """

    name: str
    body: tuple[str, ...]
    line: str

    def of(self, mark: str) -> list[str]:
        """The lines of the block that begin with a mark, without the mark."""
        return [line.removeprefix(mark).strip() for line in self.body if line.startswith(mark)]

    def answer(self, folder: pathlib.Path) -> str:
        """The error of reading it; `folder` is where its file is written."""
        try:
            self._read(folder / "ft.yaml")
        except ConfigurationError as error:
            return str(error).replace(str(folder / "ft.yaml"), "FILE")
        return ""

    def _read(self, path: pathlib.Path) -> None:
        if self.of(">"):
            FaultToleranceConfig.from_kwargs(**eval(f"dict({self.of('>')[0]})"))
        elif self.of("$"):
            parser = argparse.ArgumentParser(exit_on_error=False)
            FaultToleranceConfig.add_arguments(parser)
            args, unknown = parser.parse_known_args(self.of("$")[0].split())
            FaultToleranceConfig.refuse_unknown_flags(unknown)
            FaultToleranceConfig.from_args(args, environ={})
        elif self.of("%"):
            FaultToleranceConfig.from_environment(dict(each.split("=") for each in self.of("%")))
        else:
            self._write(path)
            FaultToleranceConfig.from_yaml_file(path, environ={})

    def _write(self, path: pathlib.Path) -> None:
        made = next(iter(self.of("@")), None)
        if made == "folder":
            path.mkdir()
        elif made != "missing":
            path.write_bytes(MADE[made] if made else "".join(f"{line}\n" for line in self.body).encode())


def _table() -> tuple[Bad, ...]:
    blocks = (block.strip("\n").split("\n") for block in TABLE.read_text().split("\n## ")[1:])
    return tuple(Bad(block[0], tuple(block[1:-1]), block[-1].removeprefix("=> ")) for block in blocks)


BAD: Final = _table()


def main() -> None:
    """Print how many raise the right error, the time of the slowest, and whether torch is imported."""
    right, slowest = 0, ("", 0.0)
    for bad in BAD:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            right += bad.answer(pathlib.Path(folder)) == bad.line
            slowest = max(slowest, (bad.name, time.perf_counter() - start), key=lambda each: each[1])
    torch = "torch is imported" if "torch" in sys.modules else "torch is not imported"
    print(f"{right} of {len(BAD)} answered by their line; the slowest took {slowest[1]:.3f} s ({slowest[0]}); {torch}")


if __name__ == "__main__":
    main()
