"""A verification: two fits without a fault, one with a fault at each hook, and their comparison."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvrx_lightning.verification.adaptation import RANKS
from nvrx_lightning.verification.comparison import Observation, differences, unstable
from nvrx_lightning.verification.errors import VerificationError
from nvrx_lightning.verification.hooks import HookCall, HookFault, choose
from nvrx_lightning.verification.processes import FINISHED, prepare_to_fork, run_fits
from nvrx_lightning.verification.rank import FitOrder
from nvrx_lightning.verification.report import FaultReport, VerificationReport
from nvrx_lightning.verification.settings import VerifySettings
from nvrx_lightning.verification.source import Source

__all__ = ["run_verification"]

_SHOWN_LINES = 20
_GIVING_UP = "RestartAbort: giving up"
"""In the error of a rank that has not failed itself the last time."""


def run_verification(source: Source, settings: VerifySettings, tell: Callable[[str], None]) -> VerificationReport:
    """Run all fits in forked processes of this one.

    Args:
        source: the function under test.
        settings: the settings.
        tell: called with a line for each fault, as soon as its fit has ended.
    """
    folder = Path(tempfile.mkdtemp(prefix="nvrx-verify-"))
    began = time.monotonic()
    try:
        _load(source)
        prepare_to_fork()
        verification = _Verification(source, settings, folder)
        baseline = verification.run_without_fault()
        faults = [
            each for each in choose(baseline.calls, every=settings.every)
            if not settings.hooks or each.call.hook in settings.hooks
        ]  # fmt: skip
        if not faults:
            known = ", ".join(sorted({each.hook for calls in baseline.calls for each in calls}))
            raise VerificationError(f"no hook is called {' or '.join(settings.hooks)}: write one of {known}")
        reports, warnings = dict[int, FaultReport](), dict.fromkeys(baseline.warnings)
        for number, report, heard in verification.run_with(faults, baseline):
            reports[number] = report
            warnings |= dict.fromkeys(heard)
            tell(f"{len(reports)} of {len(faults)} faults, the last one at {report.hook}")
    except VerificationError as error:
        return VerificationReport(refused=str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    in_order = tuple(reports[number] for number in sorted(reports))
    return VerificationReport(in_order, tuple(warnings), baseline.notes, "", time.monotonic() - began)


@dataclass(frozen=True)
class _Baseline:
    """What two fits without a fault have shown.

    Attributes:
        ranks: what each rank has seen in the first of them.
        calls: of hooks, by rank.
        unstable: the names of what differs between the two.
        warnings: of nvrx.
        notes: for people.
    """

    ranks: list[Observation]
    calls: list[list[HookCall]]
    unstable: frozenset[str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


class _Verification:
    """The fits of a verification.

    Args:
        source: the function under test.
        settings: the settings.
        folder: for the files of all fits.
    """

    def __init__(self, source: Source, settings: VerifySettings, folder: Path) -> None:
        self._source, self._settings, self._folder = source, settings, folder

    def run_without_fault(self) -> _Baseline:
        """Run two fits without a fault, and compare them.

        Raises:
            VerificationError: if a fit cannot be run, fails, or differs from the other one.
        """
        orders = [self._order(name, None) for name in ("first", "second")]
        for order, how in self._run(orders):
            _check_baseline(order, how)
        answers = [[_read(order.answer(rank)) for rank in range(RANKS)] for order in orders]
        first, second = ([Observation.read(each["seen"]) for each in answer] for answer in answers)
        names = frozenset[str]()
        for one, other in zip(first, second, strict=True):
            found, decisive = unstable(one, other)
            names |= found
            if decisive is not None:
                raise VerificationError(
                    f"two fits without a fault differ, so there is nothing to compare with: {decisive}. Make them "
                    "equal: call seed_everything(1) in make(), use no clock and no file of an earlier fit"
                )
        calls = [[HookCall(**each) for each in answer["calls"]] for answer in answers[0]]
        notes = [f"made smaller: {text}" for text in answers[0][0]["scaled"]] + answers[0][0]["notes"]
        notes += [f"{name} differs without a fault, too: not compared" for name in sorted(names)]
        if not any(each.hook == "save_checkpoint" for each in calls[0]):
            if answers[0][0]["saves"]:
                raise VerificationError(
                    f"no checkpoint is saved in {self._settings.epochs} epochs of {self._settings.batches} batches, "
                    "though the Trainer has a ModelCheckpoint: no fault would show what a restart from one comes to. "
                    "Write ModelCheckpoint(every_n_train_steps=2) in make(); or callbacks=[], "
                    "enable_checkpointing=False to verify restarts from the initial weights"
                )
            notes.append("no checkpoint is saved: each restart goes on from the initial weights")
        warnings = tuple(dict.fromkeys(text for each in first for text in each.warnings))
        return _Baseline(first, calls, names, warnings, tuple(notes))

    def run_with(
        self, faults: Iterable[HookFault], baseline: _Baseline
    ) -> Iterator[tuple[int, FaultReport, tuple[str, ...]]]:
        """Run a fit with each fault; yield its number, its report and its warnings, in the order of their ends."""
        orders = {
            f"fault-{number}": (number, self._order(f"fault-{number}", each)) for number, each in enumerate(faults)
        }
        for order, how in self._run(order for _, order in orders.values()):
            answers = [_read(order.answer(rank)) for rank in range(RANKS)]
            seen = [Observation.read(answer["seen"]) for answer in answers if "seen" in answer]
            assert order.fault is not None
            yield (
                orders[order.folder.name][0],
                _judge(order.fault, how, seen, baseline),
                tuple(text for each in seen for text in each.warnings),
            )
            shutil.rmtree(order.folder, ignore_errors=True)

    def _order(self, name: str, fault: HookFault | None) -> FitOrder:
        chosen = self._settings
        return FitOrder(self._folder / name, fault, chosen.epochs, chosen.batches, chosen.resume)

    def _run(self, orders: Iterable[FitOrder]) -> Iterator[tuple[FitOrder, str]]:
        at_once = self._settings.at_once or max(1, (os.cpu_count() or RANKS) // RANKS)
        return run_fits(self._source, orders, at_once=at_once, limit=self._settings.limit)


def _load(source: Source) -> None:
    """Import the user's module.

    Raises:
        VerificationError: if it cannot be imported.
    """
    sys.argv = [source.file or source.module]  # arguments of this command are none of the module's
    try:
        source.load()
    except VerificationError:
        raise
    except SystemExit as error:
        raise VerificationError(
            f'{source} ends its process when it is imported: write `if __name__ == "__main__":` before what trains\n'
            f"{traceback.format_exc()}"
        ) from error
    except Exception as error:  # boundary: the user's module
        raise VerificationError(f"{source} cannot be imported:\n{traceback.format_exc()}") from error


def _check_baseline(order: FitOrder, how: str) -> None:
    answers = {rank: _read(order.answer(rank)) for rank in range(RANKS)}
    for answer in answers.values():
        if "refused" in answer:
            raise VerificationError(answer["refused"])
    errors = {rank: answer["seen"]["error"] if "seen" in answer else "" for rank, answer in answers.items()}
    if any(errors.values()) or how != FINISHED:
        rank = max(errors, key=lambda rank: (bool(errors[rank]), _GIVING_UP not in errors[rank]))
        printed = order.output(rank).read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        lines = "".join(f"\n  {line}" for line in printed)
        raise VerificationError(f"the fit fails without a fault, on rank {rank}: {errors[rank] or how}{lines}")


def _judge(fault: HookFault, how: str, seen: list[Observation], baseline: _Baseline) -> FaultReport:
    """Compare the fit with a fault with the one without."""
    errors = [f"the fit has failed: {each.error}" for each in seen if each.error]
    problem = how if how != FINISHED else next(iter(errors), "")
    if not problem and len(seen) < RANKS:
        problem = "a rank has written nothing"
    if not problem and not any(each.injected for each in seen):
        problem = "this call of the hook did not take place"
    found = None
    if not problem:
        pairs = zip(baseline.ranks, seen, strict=True)
        first = (next(differences(*pair, baseline.unstable), None) for pair in pairs)
        found = next((each for each in first if each is not None), None)
    resumed = [each.resumed[-1] for each in seen if each.resumed]
    return FaultReport(
        str(fault), fault.rank, fault.call.step, fault.call.epoch, resumed[0] if resumed else None, found, problem
    )


def _read(path: Path) -> Mapping[str, Any]:
    """Return what a rank has written; nothing if it did not come to it."""
    try:
        answer: Mapping[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return answer
