"""The Trainer's loggers: a new rank 0 continues the old one's logs, and a CSV file has the rows of each step once.

A restart rolls back steps whose rows a `CSVLogger` has written. These rows are dropped, except those of
`nvrx/restarts`. Values logged after the step of the checkpoint but before the next step may or may not be logged again:
their rows stay, and are not written twice.

`snapshot.py` lists the private names of Lightning that are used here.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any, Final

from nvrx_lightning.families import lookup
from nvrx_lightning.restart.checkpoint import atomic
from nvrx_lightning.subclassing import become, keep_name

__all__ = ["RESTARTS", "CsvRows", "finalize_whole", "logger_versions", "use_logger_versions"]

RESTARTS: Final = "nvrx/restarts"
Row = dict[str, str]


def logger_versions(trainer: Any) -> list[Any]:
    """Return the versions of the Trainer's loggers, None for one without; rank 0's versions apply to the run."""
    return [each.version if "_version" in vars(each) else None for each in trainer.loggers]


def use_logger_versions(trainer: Any, versions: list[Any]) -> None:
    """Make this rank use rank 0's versions: it may become rank 0, and would start a new version otherwise."""
    for each, version in zip(trainer.loggers, versions, strict=True):
        if version is not None and vars(each).get("_experiment") is None:
            each._version = version


def finalize_whole(trainer: Any, family: str) -> None:
    """Let no restart interrupt the end of a `TensorBoardLogger`: its next attempt would write to a closed file."""
    kind = lookup(family, "loggers.TensorBoardLogger")
    for each in trainer.loggers:
        if isinstance(each, kind):
            become(each, finalizing_whole)


def finalizing_whole(kind: Any) -> type[Any]:
    """Return a subclass of a logger whose `finalize` no restart interrupts."""

    class FinalizingWhole(kind):  # type: ignore[misc]
        def finalize(self, *args: Any, **kwargs: Any) -> None:
            with atomic():
                super().finalize(*args, **kwargs)

    return keep_name(FinalizingWhole, kind)


class CsvRows:
    """The rows in the files of a Trainer's `CSVLogger`s; only rank 0 has any.

    Attributes:
        at_entry: the rows from before the fit, as rank 0 has counted them; None on a rank that has not been told.
    """

    def __init__(self, trainer: Any, family: str) -> None:
        self._trainer, self._kind = trainer, lookup(family, "loggers.CSVLogger")
        self.at_entry = self.counted(-1) if trainer.is_global_zero else None

    def counted(self, step: int) -> dict[str, Any]:
        """Return the number of rows of each file, including rows that are not yet written.

        Rows that are in a file already and are still to be logged `again` are among them.

        Args:
            step: the step of the current batch, as loggers count it; -1 before the first one.
        """
        rows, again = dict[str, int](), dict[str, list[tuple[int, list[str]]]]()
        for file, writer in self._writers():
            rows[str(file)] = _lines(file) + len(writer.metrics)
            if logged := getattr(writer, "nvrx_logged", None):
                again[str(file)] = [(at, sorted(names)) for at, names in logged]
        return {"rows": rows, "step": step, "again": again}

    def begin_attempt(self, *, anew: bool) -> None:
        """Keep the existing rows; without a checkpoint of this fit (`anew`), only those from before the fit."""
        for each in self._loggers():
            _take_over(each)
        if anew:
            self.go_back(self.at_entry)

    def begin_training(self) -> None:
        """Let no restart interrupt a writer from now on."""
        for _, writer in self._writers():
            become(writer, logging_once)

    def go_back(self, counted: dict[str, Any] | None) -> None:
        """Drop the rows of the steps that are rolled back.

        Args:
            counted: the result of `counted`; None if the checkpoint has none. A file that it lacks had no rows.
        """
        if counted is None:
            return
        for file, writer in self._writers():
            writer.save()
            if file.is_file():
                logged = _go_back(file, writer, counted["rows"].get(str(file), 0), counted["step"])
                logged |= {(at, frozenset(names)) for at, names in counted.get("again", {}).get(str(file), ())}
                become(writer, logging_once).nvrx_logged = frozenset(logged)

    def _loggers(self) -> list[Any]:
        return [each for each in self._trainer.loggers if isinstance(each, self._kind)]

    def _writers(self) -> list[tuple[Path, Any]]:
        """Return the CSV writers of loggers that have logged, with their files."""
        writers = [vars(each).get("_experiment") for each in self._loggers()]
        return [(Path(each.metrics_file_path), each) for each in writers if each is not None]


def _take_over(logger: Any) -> None:
    """Keep the old rank 0's rows on a new rank 0: a logger that starts deletes them."""
    file = Path(logger.log_dir) / "metrics.csv"
    if vars(logger).get("_experiment") is not None or not file.is_file():
        return
    rows = file.read_text()
    writer = logger.experiment
    file.write_text(rows)
    writer.metrics_keys = rows.partition("\n")[0].strip().split(",")


def _go_back(file: Path, writer: Any, count: int, step: int) -> set[tuple[int, frozenset[str]]]:
    """Drop the rows of later steps; return those after `count` that stay."""
    rows = _read(file)
    later = [row for row in rows[count:] if _is_of_restart(row) or _step(row) <= step]
    os.replace(_written_beside(file, [*rows[:count], *later], writer.metrics_keys), file)
    return {_key(row) for row in later if not _is_of_restart(row)}


def logging_once(kind: Any) -> type[Any]:
    """Return a subclass of a CSV writer that skips rows which are in the file already, and that no restart interrupts.

    For a metric that is new, a writer empties its file and writes all rows again: a fault of this rank in the midst
    would lose them. A save that fails, as on a full disk, leaves the file as it was: its rows are to be written still.
    """

    class LoggingOnce(kind):  # type: ignore[misc]
        nvrx_logged: frozenset[tuple[int, frozenset[str]]] = frozenset()
        nvrx_rewritten = 0  # bytes of the file with its last new header

        def log_metrics(self, metrics_dict: dict[str, Any], step: int | None = None) -> None:
            key = (-1 if step is None else step, frozenset(metrics_dict))
            if key in self.nvrx_logged:
                self.nvrx_logged = self.nvrx_logged - {key}
            else:
                super().log_metrics(metrics_dict, step)

        def save(self) -> None:
            with atomic():
                file = Path(self.metrics_file_path)
                header, size = _header(file), file.stat().st_size if file.is_file() else 0
                try:
                    super().save()
                except BaseException:  # boundary: also an interruption; the rows are written by a later save
                    if self.metrics:  # else all was done
                        self._undo(file, header, size)
                    raise

        def _undo(self, file: Path, header: list[str], size: int) -> None:
            if not file.is_file():
                return
            if not size:
                file.unlink()
                return
            now = _header(file)
            os.truncate(file, size if now == header else self.nvrx_rewritten)
            self.metrics_keys = now

        def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
            file = Path(self.metrics_file_path)
            if file.is_file():
                partial = _written_beside(file, _read(file), fieldnames)
                self.nvrx_rewritten = partial.stat().st_size
                os.replace(partial, file)
            else:
                super()._rewrite_with_new_header(fieldnames)

    return LoggingOnce


def _lines(file: Path) -> int:
    """Return the rows below the header."""
    return max(0, file.read_bytes().count(b"\n") - 1) if file.is_file() else 0


def _read(file: Path) -> list[Row]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def _header(file: Path) -> list[str]:
    if not file.is_file():
        return []
    with file.open(newline="") as opened:
        return next(csv.reader(opened), [])


def _written_beside(file: Path, rows: list[Row], names: list[str]) -> Path:
    """Write rows into a file that is to replace another one."""
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)
    return partial


def _is_of_restart(row: Row) -> bool:
    """Return whether a restart has logged the row; a logger may put a prefix before each name."""
    return any(value for name, value in row.items() if name.endswith(RESTARTS))


def _step(row: Row) -> int:
    return int(float(row["step"]))


def _key(row: Row) -> tuple[int, frozenset[str]]:
    return _step(row), frozenset(name for name, value in row.items() if value != "" and name != "step")
