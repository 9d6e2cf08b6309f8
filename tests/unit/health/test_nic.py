"""Checks of NICs in a tree like that of sysfs."""

import pytest

from nvrx_core.health.nic import check_link_downs, check_links, has_nics
from nvrx_core.health.result import Status

GPUS = {"0000:1a:00.0": "pci0000:10/0000:10:00.0", "0000:2a:00.0": "pci0000:20/0000:20:00.0"}
NICS = {"mlx5_0": "pci0000:20/0000:20:00.0/0000:2b:00.0", "mlx5_1": "pci0000:10/0000:10:00.0/0000:1b:00.0",
        "mlx5_9": "pci0000:90/0000:9b:00.0"}  # fmt: skip


@pytest.fixture
def sysfs(tmp_path):
    """A tree with two GPUs, a NIC next to each, one that is alone, and a display controller of another vendor."""
    for bus_id, above in (GPUS | {"0000:05:00.0": "pci0000:10"}).items():
        device = tmp_path / "devices" / above / bus_id
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n" if bus_id in GPUS else "0x1a03\n")
        (device / "class").write_text("0x030200\n")
        link = tmp_path / "bus/pci/devices" / bus_id
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
    for nic, place in NICS.items():
        device = tmp_path / "devices" / place
        port = device / "infiniband" / nic / "ports/1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "counters/link_downed").write_text("3\n")
        (device / "infiniband" / nic / "device").symlink_to(device)
        link = tmp_path / "class/infiniband" / nic
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device / "infiniband" / nic)
    (tmp_path / "bus/pci/devices/broken").symlink_to("nowhere")
    return tmp_path


def states(sysfs):
    return f"{sysfs}/class/infiniband/{{nic}}/ports/1/state"


def downs(sysfs):
    return f"{sysfs}/class/infiniband/{{nic}}/ports/1/counters/link_downed"


def test_the_state_of_each_link_is_a_level(sysfs):
    (sysfs / "class/infiniband/mlx5_1/ports/1/state").write_text("1: DOWN\n")
    results = check_links(states(sysfs))
    assert [(each.subject, each.reason, each.levels[0][1]) for each in results] == [
        ("mlx5_0", "the link is ACTIVE", 1), ("mlx5_1", "the link is DOWN", 0), ("mlx5_9", "the link is ACTIVE", 1),
    ]  # fmt: skip
    assert {each.status for each in results} == {Status.HEALTHY}, "a port that is down may be one that nobody uses"


def test_a_link_whose_state_cannot_be_read_is_unknown(sysfs):
    state = sysfs / "class/infiniband/mlx5_0/ports/1/state"
    state.unlink()
    state.mkdir()
    assert check_links(states(sysfs))[0].status is Status.UNKNOWN


def test_a_node_without_nics_has_nothing_to_check(tmp_path):
    assert not has_nics(states(tmp_path))
    for results in (check_links(states(tmp_path)), check_link_downs(downs(tmp_path), sysfs=tmp_path)):
        assert [(each.status, each.is_absent) for each in results] == [(Status.UNKNOWN, True)]


def test_only_the_nics_next_to_a_gpu_are_counted(sysfs):
    assert has_nics(states(sysfs))
    results = check_link_downs(downs(sysfs), sysfs=sysfs)
    assert [(each.subject, each.counters[0][1]) for each in results] == [("mlx5_0", 3), ("mlx5_1", 3)]
    (only,) = check_link_downs(downs(sysfs), sysfs=sysfs, gpu="0000:1a:00.0")
    assert only.subject == "mlx5_1"


def test_all_nics_are_counted_where_none_is_next_to_a_gpu(sysfs):
    for link in (sysfs / "bus/pci/devices").iterdir():
        link.unlink()
    assert [each.subject for each in check_link_downs(downs(sysfs), sysfs=sysfs)] == sorted(NICS)


def test_a_topology_file_comes_before_the_tree(sysfs, tmp_path):
    topology = tmp_path / "topology.xml"
    devices = '<pci busid="0000:1a:00.0"/><pci busid="0000:9b:00.0"/>'
    topology.write_text(f'<system><cpu><pci busid="0000:10:00.0">{devices}</pci></cpu></system>')
    assert [each.subject for each in check_link_downs(downs(sysfs), str(topology), sysfs=sysfs)] == ["mlx5_9"]


@pytest.mark.parametrize("text", [None, "not xml"])
def test_a_topology_file_that_cannot_be_read_is_unknown(sysfs, tmp_path, text):
    topology = tmp_path / "topology.xml"
    if text is not None:
        topology.write_text(text)
    (result,) = check_link_downs(downs(sysfs), str(topology), sysfs=sysfs)
    assert result.status is Status.UNKNOWN
    assert result.reason.startswith(str(topology))


def test_a_counter_that_is_no_number_is_unknown(sysfs):
    (sysfs / "class/infiniband/mlx5_0/ports/1/counters/link_downed").write_text("many\n")
    results = check_link_downs(downs(sysfs), sysfs=sysfs)
    assert [each.status for each in results] == [Status.UNKNOWN, Status.HEALTHY]


def test_a_template_may_have_the_name_inside_a_file_name(tmp_path):
    for nic in ("mlx5_0", "mlx5_1"):
        (tmp_path / f"state-{nic}.txt").write_text("4: ACTIVE\n")
    (tmp_path / "other").write_text("")
    results = check_links(f"{tmp_path}/state-{{nic}}.txt")
    assert [each.subject for each in results] == ["mlx5_0", "mlx5_1"]
