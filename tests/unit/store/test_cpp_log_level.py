"""torch's C++ log while a call is under way. A canary for the private name that sets it."""

import socket
import threading
from contextlib import suppress
from datetime import timedelta

import pytest

from nvrx_core.store import torch_stores
from nvrx_core.store.cpp_log_level import ERROR, FATAL, level, quiet
from nvrx_core.store.endpoint import StoreConnectionError

WARNING = 1


@pytest.fixture
def word(monkeypatch):
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    word = level()
    before, word.value = word.value, WARNING
    yield word
    word.value = before


def test_torch_has_the_name():
    assert level() is not None, "libc10 has no FLAGS_caffe2_log_level: a lost store prints C++ stacks again"


def test_only_errors_are_logged_for_a_while(word):
    with quiet():
        assert word.value == ERROR
        with quiet(FATAL):
            assert word.value == FATAL
        assert word.value == ERROR
    assert word.value == WARNING


def test_threads_may_leave_in_any_order(word):
    first, second = quiet(FATAL), quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert word.value == ERROR
    second.__exit__(None, None, None)
    assert word.value == WARNING


def test_what_the_user_has_set_counts(word, monkeypatch):
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "WARNING")
    with quiet():
        assert word.value == WARNING


def test_a_client_that_is_not_answered_raises_an_error_and_prints_nothing(word, monkeypatch, capfd):
    """As a rank does whose store is killed while it connects: torch would log each attempt, with its stack."""
    monkeypatch.setattr(torch_stores, "ATTEMPTS", (timedelta(seconds=0.25),))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse():
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        refusing = threading.Thread(target=refuse)
        refusing.start()
        monkeypatch.setenv("NVRX_STORE_ENDPOINT", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(StoreConnectionError, match="failed: "):
            torch_stores.TCPStore(timeout=timedelta(seconds=2))
        server.shutdown(socket.SHUT_RDWR)
        refusing.join()
    assert "TCPStore.cpp" not in capfd.readouterr().err
