"""Every signal has a name, those included that Python has none for."""

import signal

import pytest

from nvrx_core.process.signals import signal_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN, "SIGRTMIN"), (signal.SIGRTMIN + 8, "SIGRTMIN+8"),
        (signal.SIGRTMAX, "SIGRTMAX"), (signal.SIGRTMIN - 1, f"signal {signal.SIGRTMIN - 1}"),
    ],
)  # fmt: skip
def test_a_signal_has_a_name(number, name):
    assert signal_name(number) == name
