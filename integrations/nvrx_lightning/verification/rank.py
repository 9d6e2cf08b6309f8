"""One rank of one fit: makes the user's Trainer and module, runs the fit, and writes what it has seen."""

from __future__ import annotations

import csv
import json
import logging
import traceback
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nvrx_lightning.restart.loggers import RESTARTS
from nvrx_lightning.verification.adaptation import check, redirect, saves_checkpoints, scale_down
from nvrx_lightning.verification.comparison import Observation
from nvrx_lightning.verification.digests import entries
from nvrx_lightning.verification.errors import VerificationError
from nvrx_lightning.verification.hooks import HookCalls, HookFault
from nvrx_lightning.verification.observer import VerificationObserver, final_state
from nvrx_lightning.verification.source import Source

__all__ = ["FitOrder", "run_rank"]


@dataclass(frozen=True)
class FitOrder:
    """A fit to run.

    Attributes:
        folder: of this fit: its files, and what its ranks have seen.
        fault: None for none.
        epochs: at most so many.
        batches: at most so many in an epoch.
        resume: what restarts go on from; "" for what the strategy says.
    """

    folder: Path
    fault: HookFault | None
    epochs: int
    batches: int
    resume: str = ""

    def answer(self, rank: int) -> Path:
        """Return the file of what a rank has seen."""
        return self.folder / f"rank-{rank}.json"

    def output(self, rank: int) -> Path:
        """Return the file of what a rank has printed."""
        return self.folder / f"rank-{rank}.log"


class _Warnings(logging.Handler):
    """Collects the warnings of nvrx."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.texts[record.getMessage()] = None


def run_rank(source: Source, order: FitOrder, rank: int) -> None:
    """Run a fit in this process, which is one of its ranks, and write what it has seen."""
    heard = _Warnings()
    logging.getLogger("nvrx_lightning").addHandler(heard)
    made = _made(source, order)
    if isinstance(made, str):
        order.answer(rank).write_text(json.dumps({"refused": made}))
        return
    trainer, arguments = made
    scaled = scale_down(trainer, order.epochs, order.batches)
    redirect(trainer, order.folder)
    if order.resume:
        trainer.strategy.in_process_options = replace(trainer.strategy.in_process_options, resume=order.resume)
    observer = VerificationObserver()
    trainer.callbacks.insert(0, observer)
    mine = order.fault if order.fault is not None and order.fault.rank == rank else None
    calls = HookCalls(trainer, mine, observer.state_key)
    error, final = "", dict[str, dict[str, str]]()
    try:
        trainer.fit(*arguments)
        final = _final(trainer, arguments[0], order.folder)
    except BaseException as raised:  # boundary: the user's training
        traceback.print_exc()
        error = "".join(traceback.format_exception_only(raised)).strip()
    seen = Observation(observer.events, final, observer.resumed, calls.injected, list(heard.texts), error)
    answer: dict[str, Any] = {"seen": seen.written(), "scaled": scaled, "notes": _notes(trainer)}
    answer["saves"] = saves_checkpoints(trainer)
    if order.fault is None:
        answer["calls"] = [asdict(each) for each in calls.calls]
    order.answer(rank).write_text(json.dumps(answer))


def _made(source: Source, order: FitOrder) -> tuple[Any, tuple[Any, ...]] | str:
    """Return Trainer and arguments, or why there are none."""
    try:
        return check(source.load()())
    except VerificationError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # boundary: the user's function
        traceback.print_exc()
        text = "".join(traceback.format_exception_only(error)).strip()
        frames = traceback.extract_tb(error.__traceback__)
        users = [each for each in frames if "site-packages" not in each.filename and each.filename != __file__]
        frame = (users or frames)[-1]
        devices = any(word in text.lower() for word in ("accelerator", "gpu", "cuda"))
        hint = '\n  verify hides GPUs: write accelerator="cpu", devices=2' if devices else ""
        return f"make() has failed with {text}\n  in {frame.filename}, line {frame.lineno}: {frame.line}{hint}"


def _final(trainer: Any, module: Any, folder: Path) -> dict[str, dict[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = final_state(trainer, module, module.state_dict())
        if trainer.is_global_zero:
            found["checkpoint file"] = _checkpoint_files(folder)
            found["logger row"] = _logger_rows(folder)
    whole = str(folder)
    return {
        kind: {name.replace(whole, "..."): text.replace(whole, "...") for name, text in values.items()}
        for kind, values in found.items()
    }


def _checkpoint_files(folder: Path) -> dict[str, str]:
    """Return the steps and weights in the checkpoints that are left."""
    found = dict[str, str]()
    for path in sorted(folder.rglob("*.ckpt")):
        name = str(path.relative_to(folder))
        if path.is_file():
            saved = torch.load(path, map_location="cpu", weights_only=False)
            state = {"step": saved.get("global_step"), **saved.get("state_dict", {})}
            found |= entries(state, name)
        else:
            found[name] = "a folder"
    return found


def _logger_rows(folder: Path) -> dict[str, str]:
    """Return the rows of CSV loggers without those of restarts."""
    found = dict[str, str]()
    for path in sorted(folder.rglob("metrics.csv")):
        with path.open(newline="") as opened:
            rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(opened)]
        rows = [row for row in rows if not any(name.endswith(RESTARTS) for name in row)]
        for number, row in enumerate(rows):
            found[f"{path.relative_to(folder)} {number}"] = ", ".join(f"{key}={row[key]}" for key in sorted(row))
    return found


def _notes(trainer: Any) -> list[str]:
    """Return what of a training cannot be compared, for people."""
    others = [type(each).__name__ for each in trainer.loggers if type(each).__name__ != "CSVLogger"]
    return [f"the rows of {name} are not compared: it keeps those of steps that are taken back" for name in others]
