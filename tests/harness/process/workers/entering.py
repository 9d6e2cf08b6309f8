"""Each rank notes what was imported between its call and the first line of the function."""

import sys

from nvrx_core import inprocess
from tests.harness.process.workers.record import Record


def main() -> None:
    record = Record.of_environment()
    before = set(sys.modules)

    @inprocess.Wrapper()
    def train() -> None:
        record("entered", before=sorted(before), imported=sorted(set(sys.modules) - before))

    before |= set(sys.modules)
    train()


if __name__ == "__main__":
    main()
