"""What a thread waits for, from the files of the kernel; real threads are in `tests/process/test_thread_waits.py`."""

import os

import pytest

from nvrx_core.process import proc
from nvrx_core.process.thread_wait import ThreadWait, wait_of


def test_a_process_that_is_gone_waits_for_nothing():
    assert wait_of(1 << 22, 1 << 22) == ThreadWait(False, False, "")


FILES = {
    "an uninterruptible wait": ({"stat": "1 (x) D 0", "wchan": "nfs_wait"}, "the disk or a device (nfs_wait)"),
    "the same, hidden": ({"stat": "1 (x) D 0"}, "the disk or a device"),
    "no system call is told": ({"stat": "1 (x) S 0", "wchan": "futex_do_wait"}, "a lock"),
    "a call that is not in the table": (
        {"stat": "1 (x) S 0", "syscall": "9999 0x1", "wchan": "unix_stream_data"}, "a socket",
    ),
    "nothing is known": ({"stat": "1 (x) S 0", "syscall": "9999 0x1"}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_the_kernel_s_files_are_read_as_they_are(monkeypatch, case):
    files, text = FILES[case]
    monkeypatch.setattr(proc, "read_text", lambda path: files.get(str(path).rpartition("/")[2], ""))
    assert wait_of(1, 1) == ThreadWait(False, False, text)


def test_a_descriptor_of_a_process_that_may_not_be_read_is_numbered(monkeypatch):
    number = {"x86_64": 0, "aarch64": 63}[os.uname().machine]
    files = {"stat": "1 (x) S 0", "syscall": f"{number} 0x1f 0x0"}
    monkeypatch.setattr(proc, "read_text", lambda path: files.get(str(path).rpartition("/")[2], ""))
    assert wait_of(1 << 22, 1).text == "data from descriptor 31"
