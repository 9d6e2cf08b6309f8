"""The progress page between processes: attached to by descriptor, written to without a system call."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys

from nvrx_core.progress.page import Page, ProgressField, SectionField

PR_SET_SECCOMP, SECCOMP_MODE_STRICT = 22, 1
MONITOR = """
import os, sys
from nvrx_core.progress.page import Page, ProgressField, SectionField
page = Page.attach(int(sys.argv[1]))
slot = page.sections()["step"]
print(page[ProgressField.ITERATION], page.words[slot + SectionField.OPENED_AT], sorted(page.members()))
page[ProgressField.MONITOR_PID] = os.getpid()
assert "torch" not in sys.modules
"""


def test_a_process_that_was_not_forked_attaches() -> None:
    page = Page.create(4)
    try:
        page[ProgressField.ITERATION] = 3
        page.words[page.declare_section("step") + SectionField.OPENED_AT] = 17
        page.lose([2])
        arguments = [sys.executable, "-c", MONITOR, str(page.fileno())]
        with subprocess.Popen(arguments, pass_fds=[page.fileno()], stdout=subprocess.PIPE, text=True) as monitor:
            said, _ = monitor.communicate(timeout=30)
        assert said == "3 17 [0, 1, 3]\n"
        assert page[ProgressField.MONITOR_PID] == monitor.pid
    finally:
        page.close()


def test_a_write_costs_no_system_call() -> None:
    """In a process that the kernel ends at any system call but `read` and `write` (seccomp(2), strict mode)."""
    page, (reader, writer) = Page.create(4), os.pipe()
    slot, prctl = page.declare_section("step"), ctypes.CDLL(None, use_errno=True).prctl
    child = os.fork()
    if child == 0:
        gc.disable()
        if prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0:
            for number in range(10_000):
                page[ProgressField.STEP] = number
                page.words[ProgressField.PING] = number
                page.words[slot + SectionField.OPENED_AT] = number
            os.write(writer, b"done")
        os._exit(0)  # which is a system call: the kernel kills it
    os.close(writer)
    try:
        assert os.read(reader, 9) == b"done"
        assert (page[ProgressField.STEP], page[ProgressField.PING]) == (9_999, 9_999)
    finally:
        os.close(reader)
        os.waitpid(child, 0)
        page.close()
