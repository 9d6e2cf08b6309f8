"""Which NIC is next to which GPU."""

import pytest

from nvrx_core.health.topology import chains_of_topology, nearest_nics

TOPOLOGY = """
<system version="1">
  <cpu numaid="0">
    <pci busid="0000:10:00.0"><pci busid="0000:1A:00.0"/><pci busid="0000:1b:00.0"><nic/></pci></pci>
    <pci busid="0000:20:00.0"><pci busid="0000:2a:00.0"/></pci>
    <pci/>
  </cpu>
  <cpu numaid="1"><pci busid="0000:3a:00.0"/></cpu>
</system>
"""


def test_the_nic_that_shares_most_bridges_is_the_nearest():
    gpus = {"a": ("root", "switch 1", "a"), "b": ("root", "switch 2", "b")}
    nics = {"m0": ("root", "switch 2", "m0"), "m1": ("root", "switch 1", "m1"), "m2": ("other", "m2")}
    assert nearest_nics(gpus, nics) == {"a": "m1", "b": "m0"}


def test_gpus_that_are_equally_close_get_different_nics_while_there_are_any():
    gpus = {name: ("root", name) for name in "abc"}
    nics = {name: ("root", name) for name in ("m0", "m1")}
    assert nearest_nics(gpus, nics) == {"a": "m0", "b": "m1", "c": "m0"}


def test_a_gpu_without_a_common_bridge_has_no_nic():
    assert nearest_nics({"a": ("one", "a"), "b": ()}, {"m0": ("two", "m0")}) == {}
    assert nearest_nics({"a": ("one", "a")}, {}) == {}


def test_a_topology_file_gives_the_places_by_bus_id():
    chains = chains_of_topology(TOPOLOGY)
    assert chains["0000:1a:00.0"][:2] == chains["0000:1b:00.0"][:2] == ("cpu 0", "0000:10:00.0")
    assert chains["0000:3a:00.0"] == ("cpu 1", "0000:3a:00.0")
    gpus = {each: chains[each] for each in ("0000:1a:00.0", "0000:3a:00.0")}
    assert nearest_nics(gpus, {"m0": chains["0000:1b:00.0"]}) == {"0000:1a:00.0": "m0"}


def test_a_file_that_is_no_xml_is_a_value_error():
    with pytest.raises(ValueError, match="it is no XML: "):
        chains_of_topology("mlx5_0")
