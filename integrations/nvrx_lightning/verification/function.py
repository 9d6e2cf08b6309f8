"""`verify`: starts the process of a verification, and returns its report.

That process imports Lightning and the user's module once more, and forks the ranks of all fits: it has no threads, no
CUDA context and no process group, which the user's process may have.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvrx_lightning import environment
from nvrx_lightning.verification.errors import VerificationError
from nvrx_lightning.verification.report import VerificationReport
from nvrx_lightning.verification.settings import VerifySettings
from nvrx_lightning.verification.source import Source

__all__ = ["verify"]


def verify(make: Callable[[], Any], *, quiet: bool = False, **settings: Any) -> VerificationReport:
    """Run a training with a fault at each hook, and compare it with the training without a fault, bit by bit.

    The training runs on two CPU ranks, for a few batches, in processes of its own. Weights, optimizers, schedulers, the
    order of the samples, metrics, attributes of module and callbacks, checkpoints, rows of a `CSVLogger` and random
    numbers are compared.

    Args:
        make: returns `trainer, module` and what `trainer.fit` takes after the module. A function at the top level of a
            module, since other processes import it.
        quiet: do not print the report.
        settings: the fields of `VerifySettings`.

    Returns:
        What was found. `report.exit_code` is 0 if nothing differs, 1 if something does.

    Raises:
        VerificationError: if the training cannot be verified: what to write instead is in the message.
        TypeError: for a setting that does not exist.
    """
    if environment.verifies():
        raise VerificationError(
            'the import of its own module calls verify(): call it under `if __name__ == "__main__":`'
        )
    source, chosen = Source.of(make), VerifySettings(**settings)
    with tempfile.TemporaryDirectory(prefix="nvrx-verify-") as folder:
        answer = Path(folder, "report.json")
        job = {"source": asdict(source), "settings": asdict(chosen), "report": str(answer)}
        command = [sys.executable, "-m", "nvrx_lightning.verify", "--job", json.dumps(job)]
        output = subprocess.DEVNULL if quiet else None
        done = subprocess.run(command, env=environment.for_verification(sys.path), stdout=output, check=False)
        if not answer.exists():
            raise VerificationError(f"the verification itself has ended with code {done.returncode}")
        report = VerificationReport.read(json.loads(answer.read_text()))
    if report.refused:
        raise VerificationError(report.refused)
    return report
