"""Which mappings of a process belong to a device."""

from pathlib import Path

from nvrx_core.process import orphan
from nvrx_core.process.orphan import DeviceMappings, mapped

MAPS = """\
55d0a0000000-55d0a0021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000200000 rw-s 00000000 00:05 12                         /dev/nvidiactl
7f0000200000-7f0000201000 r--p 00000000 08:01 131                        /usr/lib/libnvidia-ml.so.1
7f0000300000-7f0000310000 -w-s 00000000 00:05 13                         /dev/nvidia0
7f0000400000-7f0000410000 rw-s 00000000 00:01 2048                       /dev/zero (deleted)
7f0000500000-7f0000510000 rw-s 00000000 00:05 14                         /dev/nvidia-uvm
"""


def test_the_mappings_of_devices_are_found():
    assert [end - first for first, end in mapped(MAPS)] == [0x200000, 0x10000, 0x10000]


def test_a_process_without_a_device_has_nothing_to_release(monkeypatch):
    monkeypatch.setattr(orphan, "CONTROL", Path("/dev/null"))
    DeviceMappings().release()


def test_a_machine_without_a_device_costs_no_look_at_the_mappings(monkeypatch, tmp_path):
    monkeypatch.setattr(orphan, "CONTROL", tmp_path / "nvidiactl")
    monkeypatch.setattr(orphan, "MAPS", tmp_path / "maps")
    DeviceMappings().release()
