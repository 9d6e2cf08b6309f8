"""The log line about how the ranks were started."""

import logging
import multiprocessing

import pytest

from nvrx_core.inprocess.call.environment_checks import log_start

RANK = {"RANK": "0", "WORLD_SIZE": "2"}
TORCHRUN = RANK | {"TORCHELASTIC_RUN_ID": "job"}


@pytest.mark.parametrize(
    ("variables", "rank", "level", "text"),
    [
        ({}, 0, logging.INFO, "this process is a job of one rank"),
        (RANK, 0, None, ""),
        (TORCHRUN, 0, logging.WARNING, "started by torchrun, which ends all ranks"),
        (TORCHRUN, 1, None, ""),
        (TORCHRUN | {"FT_LAUNCHER_IPC_SOCKET": "/run/launcher"}, 0, None, ""),
    ],
)
def test_the_line(variables, rank, level, text, monkeypatch, caplog):
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "FT_LAUNCHER_IPC_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.DEBUG)
    log_start(rank, 2 if variables else 1)
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])
    assert text in caplog.text


def test_a_child_of_multiprocessing_is_warned(monkeypatch, caplog):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    log_start(0, 1)
    assert "set RANK, WORLD_SIZE, MASTER_PORT in the target of mp.spawn before the call" in caplog.text
