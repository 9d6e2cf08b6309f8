"""A CSV file has the rows of each step once, whatever a restart takes back."""

from __future__ import annotations

import csv
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from lightning.fabric.loggers.csv_logs import _ExperimentWriter
from lightning.pytorch.loggers import TensorBoardLogger
from nvrx_lightning.restart.loggers import RESTARTS, CsvRows, finalize_whole, logging_once
from nvrx_lightning.subclassing import become

FAMILY = "lightning.pytorch"


class Writer:
    """Writes what it is given at once, as `CSVLogger` does after some steps."""

    def __init__(self, file: Path) -> None:
        self.metrics_file_path, self.metrics_keys = str(file), ["loss", "val", RESTARTS, "step"]
        self.metrics: list[dict[str, Any]] = []

    def log_metrics(self, metrics_dict: dict[str, Any], step: int | None = None) -> None:
        self.metrics.append({**metrics_dict, "step": step})

    def save(self) -> None:
        begins = not Path(self.metrics_file_path).exists()
        with open(self.metrics_file_path, "a", newline="") as opened:
            rows = csv.DictWriter(opened, self.metrics_keys)
            if begins:
                rows.writeheader()
            rows.writerows(self.metrics)
        self.metrics = []


@pytest.fixture
def writer(tmp_path):
    return Writer(tmp_path / "metrics.csv")


@pytest.fixture
def trainer(monkeypatch, writer, tmp_path):
    class CSVLogger:
        def __init__(self, experiment: Writer | None) -> None:
            self._experiment, self.log_dir = experiment, tmp_path

    module = ModuleType(f"{FAMILY}.loggers")
    module.CSVLogger = CSVLogger  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{FAMILY}.loggers", module)
    return SimpleNamespace(loggers=[object(), CSVLogger(writer)], is_global_zero=True)


def new_logger(trainer, writer):
    """The logger of another rank, which begins a file anew when it first writes."""

    class Beginning(type(trainer.loggers[1])):  # type: ignore[misc]
        @property
        def experiment(self) -> Writer:
            if self._experiment is None:
                Path(writer.metrics_file_path).unlink()
                self._experiment = Writer(Path(writer.metrics_file_path))
            return self._experiment

    return Beginning(None)


def logged(writer):
    writer.save()
    with open(writer.metrics_file_path, newline="") as opened:
        return [
            (int(row["step"]), *(name for name in row if row[name] and name != "step"))
            for row in csv.DictReader(opened)
        ]


@pytest.fixture
def rows(trainer):
    return CsvRows(trainer, FAMILY)


def test_rows_are_counted_with_those_that_are_to_be_written(rows, writer):
    assert rows.counted(-1) == {"rows": {writer.metrics_file_path: 0}, "step": -1, "again": {}}
    writer.log_metrics({"loss": 1.0}, 0)
    writer.save()
    writer.log_metrics({"loss": 1.0}, 1)
    assert rows.counted(1)["rows"] == {writer.metrics_file_path: 2}


def test_rows_of_steps_that_are_taken_back_go_and_those_of_restarts_stay(rows, writer):
    for step in range(3):
        writer.log_metrics({"loss": 1.0}, step)
    counted = rows.counted(3)
    for step in range(3, 6):
        writer.log_metrics({"loss": 1.0}, step)
    writer.log_metrics({RESTARTS: 1.0}, 4)
    rows.go_back(counted)
    assert logged(writer) == [(0, "loss"), (1, "loss"), (2, "loss"), (3, "loss"), (4, RESTARTS)]


def test_a_second_restart_from_the_same_step_writes_no_row_twice_either(rows, writer):
    counted = rows.counted(0)
    writer.log_metrics({"loss": 1.0}, 0)
    rows.go_back(counted)
    counted = rows.counted(0)  # with the row that is still to be logged again
    assert counted["again"] == {writer.metrics_file_path: [(0, ["loss"])]}
    rows.go_back(counted)
    writer.log_metrics({"loss": 1.0}, 0)
    writer.save()
    assert logged(writer) == [(0, "loss")]


def test_what_may_be_logged_again_is_written_once(rows, writer):
    counted = rows.counted(0)
    for metrics in ({"loss": 1.0}, {"val": 1.0}):
        writer.log_metrics(metrics, 0)
    rows.go_back(counted)
    for metrics, step in (({"val": 1.0}, 0), ({RESTARTS: 1.0}, 0), ({"loss": 2.0}, 1), ({"val": 2.0}, 0)):
        writer.log_metrics(metrics, step)
    assert logged(writer) == [(0, "loss"), (0, "val"), (0, RESTARTS), (1, "loss"), (0, "val")]


def test_without_a_checkpoint_all_rows_of_the_fit_go_and_those_before_it_stay(trainer, writer):
    writer.log_metrics({"loss": 1.0}, 9)
    rows = CsvRows(trainer, FAMILY)
    writer.log_metrics({"loss": 1.0}, 0)
    rows.begin_attempt(anew=True)
    assert logged(writer) == [(9, "loss")]


def test_a_new_rank_0_takes_back_what_the_old_one_has_logged_in_the_fit(trainer, writer):
    """It has no writer yet, and it knows from the old one how many rows the fit began with."""
    writer.log_metrics({"loss": 1.0}, 9)
    at_entry = CsvRows(trainer, FAMILY).at_entry
    writer.log_metrics({"loss": 1.0}, 0)
    writer.save()
    logger = trainer.loggers[1] = new_logger(trainer, writer)
    trainer.is_global_zero = False
    rows = CsvRows(trainer, FAMILY)
    assert rows.at_entry is None
    rows.at_entry = at_entry
    rows.begin_attempt(anew=True)
    assert logged(logger.experiment) == [(9, "loss")]


def test_the_rows_of_restarts_stay_under_a_prefix_too(rows, writer):
    name = f"mine-{RESTARTS}"
    writer.metrics_keys.insert(0, name)
    counted = rows.counted(-1)
    for metrics in ({"loss": 1.0}, {name: 1.0}):
        writer.log_metrics(metrics, 3)
    rows.go_back(counted)
    assert logged(writer) == [(3, name)]


def test_nothing_is_made_where_nothing_was_written(rows, writer):
    rows.go_back(rows.counted(-1))
    rows.go_back(None)
    assert logged(writer) == []


def test_a_writer_of_tensorboard_is_closed_in_an_atomic_section(tmp_path, monkeypatch):
    logger, entered = TensorBoardLogger(tmp_path), []

    @contextmanager
    def atomic():
        entered.append(True)
        yield
        assert logger.experiment.all_writers is None, "it is closed inside"

    monkeypatch.setattr("nvrx_lightning.restart.loggers.atomic", atomic)
    finalize_whole(SimpleNamespace(loggers=[logger, object()]), FAMILY)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.finalize("success")
    assert entered
    assert type(logger).__name__ == "TensorBoardLogger"


def test_no_row_is_lost_to_a_fault_while_a_new_metric_gets_its_column(writer, monkeypatch):
    writer.log_metrics({"loss": 1.0}, 0)
    writer.save()
    file = Path(writer.metrics_file_path)
    before = file.read_text()
    become(writer, logging_once)

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(csv.DictWriter, "writerows", full)
        with pytest.raises(OSError, match="No space"):
            writer._rewrite_with_new_header([*writer.metrics_keys, "new"])
    assert file.read_text() == before
    writer._rewrite_with_new_header([*writer.metrics_keys, "new"])
    assert file.read_text().splitlines() == [f"loss,val,{RESTARTS},step,new", "1.0,,,0,"]


@pytest.mark.parametrize("where", ["in the header", "in the rows", "once the rows are written"])
def test_a_save_that_fails_leaves_no_row_twice_and_none_in_other_columns(where, trainer, tmp_path, monkeypatch):
    """Lightning's writer knows the names of a new metric before it writes them into the header."""
    writer = trainer.loggers[1]._experiment = become(_ExperimentWriter(str(tmp_path / "logs")), logging_once)
    rows, file = CsvRows(trainer, FAMILY), Path(writer.metrics_file_path)
    for metrics, step in (({"loss": 1.0}, 0), ({RESTARTS: 1.0}, 1)):
        writer.log_metrics(metrics, step)
        writer.save()
    counted, before = rows.counted(1), file.read_text()
    writer.log_metrics({"early": 2.0, "loss": 2.0}, 1)
    write, writes = csv.DictWriter.writerows, []

    def full(self: Any, written: Any) -> None:
        writes.append(written)
        if len(writes) < (1 if where == "in the header" else 2):
            return write(self, written)
        if where == "once the rows are written":
            write(self, written)
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(csv.DictWriter, "writerows", full)
        with pytest.raises(OSError, match="No space"):
            writer.save()
    if where == "in the header":
        assert file.read_text() == before
    writer.save()
    writer.log_metrics({"early": 3.0, "loss": 3.0}, 2)
    rows.go_back(counted)
    assert logged(writer) == [(0, "loss"), (1, RESTARTS), (1, "early", "loss")]
