"""Which NIC is next to which GPU, by the PCI bridges above both. Pure.

A device's place is the chain of its ancestors, from the root down: the directories of its path in sysfs, or the
elements around it in a topology file of NCCL. The more of it two devices share, the closer they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

__all__ = ["Chain", "chains_of_topology", "nearest_nics"]

Chain = tuple[str, ...]
"""The ancestors of a device, from the root down, and the device itself."""


def nearest_nics(gpus: Mapping[str, Chain], nics: Mapping[str, Chain]) -> dict[str, str]:
    """Return the NIC next to each GPU, by name.

    Args:
        gpus: the place of each GPU.
        nics: the place of each NIC.

    Returns:
        For each GPU the NIC with which it shares most bridges; of those that are equally close one that no GPU before
        it has. A GPU that shares none with any NIC is left out.
    """
    found = dict[str, str]()
    for gpu, chain in gpus.items():
        shared = {nic: _shared(chain, place) for nic, place in nics.items()}
        closest = max(shared.values(), default=0)
        if closest > 0:
            candidates = [nic for nic, bridges in shared.items() if bridges == closest]
            free = [nic for nic in candidates if nic not in found.values()]
            found[gpu] = (free or candidates)[0]
    return found


def chains_of_topology(text: str) -> dict[str, Chain]:
    """Return the place of each PCI device of a topology file, by its bus id in lower case.

    Raises:
        ValueError: when the text is no XML.
    """
    import xml.etree.ElementTree as ET  # of use to few

    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise ValueError(f"it is no XML: {error}") from None
    found = dict[str, Chain]()
    left = [(root, Chain())]
    while left:
        element, above = left.pop()
        for number, child in enumerate(element):
            bus_id = child.get("busid", "").lower()
            chain = (*above, bus_id or f"{child.tag} {number}")
            if child.tag == "pci" and bus_id:
                found[bus_id] = chain
            left.append((child, chain))
    return found


def _shared(one: Chain, other: Chain) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
