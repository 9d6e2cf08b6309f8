"""Faults that a job dispatches to itself, as Megatron-LM does."""

import threading

import pytest

from nvrx_core.testing import InjectedFault
from nvrx_core.testing.dispatch import (
    Fault,
    clear_workload_exception,
    dispatch_fault_injection,
    maybe_raise_workload_exception,
)
from nvrx_core.testing.injection import KNOWN_AS


def test_every_known_fault_has_a_number_that_can_be_sent():
    assert [fault.name for fault in Fault] == list(KNOWN_AS)
    assert all(Fault(int(float(fault.value))) is Fault[fault.name] is fault for fault in Fault)


def test_an_exception_of_the_workload_is_raised_where_it_asks_once():
    told = []
    maybe_raise_workload_exception()
    dispatch_fault_injection(fault=Fault.WORKLOAD_EXC, delay=0.0, callback=lambda: told.append("now")).join()
    assert told == ["now"]
    with pytest.raises(InjectedFault):
        maybe_raise_workload_exception()
    maybe_raise_workload_exception()


def test_an_exception_that_is_due_can_be_forgotten():
    dispatch_fault_injection(Fault.WORKLOAD_EXC, 0.0).join()
    clear_workload_exception()
    maybe_raise_workload_exception()


@pytest.mark.parametrize("fault", [Fault.ASYNC_EXC, Fault.SIGNAL_EXC])
def test_other_faults_are_injected_without_a_call(fault):
    with pytest.raises(InjectedFault):
        dispatch_and_wait(fault)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


def dispatch_and_wait(fault):
    dispatch_fault_injection(fault, 0.02)
    while True:
        threading.Event().wait(0.001)


def test_a_fault_that_needs_a_device_is_refused_before_its_time(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="a CUDA device"):
        dispatch_fault_injection(Fault.GPU_ERROR, 0.0)
