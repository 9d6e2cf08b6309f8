"""Whether the kernel has killed for want of memory: read from the cgroup, in either version of it."""

import os
from pathlib import Path

import pytest

from nvrx_core.process import memory
from nvrx_core.process.memory import MemoryKills, available_bytes

V1 = "memory/{path}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n"
V2 = "{path}/memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill {count}\n"


@pytest.fixture
def told(monkeypatch):
    """What the kernel tells of the process's cgroups."""
    lines = []
    read = Path.read_text

    def read_text(self, **how):
        return "\n".join(lines) if str(self).startswith("/proc/") else read(self, **how)

    monkeypatch.setattr(memory.Path, "read_text", read_text)
    return lines


@pytest.mark.parametrize(
    ("version", "cgroup", "path"),
    [
        (V1, "4:cpu,memory:/job", "job"),
        (V2, "0::/job", "job"),
        (V2, "0::/job/without/memory", "job"),
        (V1, "4:memory:/hidden/by/a/namespace", "."),
        (V2, "0::/../hidden", "."),
    ],
)
def test_an_oom_kill_is_detected(told, tmp_path, version, cgroup, path):
    told += ["5:cpu:/elsewhere", cgroup]
    file = tmp_path / version[0].format(path=path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(version[1].format(count=3))
    kills = MemoryKills(7, tmp_path)
    assert (kills.count(), kills.rose()) == (3, False)
    file.write_text(version[1].format(count=4))
    assert kills.rose()
    kills.note()
    assert not kills.rose()


def test_without_a_counter_no_kill_is_reported(told, tmp_path):
    told.append("0::/job")
    assert not MemoryKills(7, tmp_path).rose()
    (tmp_path / "memory.events").write_text("oom_kill what\n")
    assert MemoryKills(7, tmp_path).count() == 0


def test_a_process_that_is_gone_has_no_cgroup(tmp_path):
    assert MemoryKills(2**22, tmp_path).count() == 0
    assert not MemoryKills(os.getpid()).rose()


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 8 << 20),
        ({"memory.max": "max\n", "memory.current": "1"}, 8 << 20),
        ({"memory.max": "4194304\n", "memory.current": "2097152\n", "memory.stat": "inactive_file 1048576"}, 3 << 20),
        (
            {
                "memory/memory.limit_in_bytes": "2097152",
                "memory/memory.usage_in_bytes": "1048576",
                "memory/memory.stat": "",
            },
            1 << 20,
        ),
        ({"memory.max": "1", "memory.current": "2", "memory.stat": "anon 2"}, 0),
    ],
)
def test_free_memory_is_that_of_the_machine_and_of_the_container(tmp_path, files, free):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16384 kB\nMemAvailable:    8192 kB\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(meminfo, tmp_path) == free
