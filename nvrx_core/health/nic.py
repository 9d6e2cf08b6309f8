"""Checks of NICs: the state of their links, and the link-down counters of those that are next to a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nvrx_core.health.result import CheckResult, Status
from nvrx_core.health.topology import Chain, chains_of_topology, nearest_nics

__all__ = ["NIC", "check_link_downs", "check_links", "has_nics"]

NIC: Final = "nic"
STATE: Final = "/sys/class/infiniband/{nic}/ports/1/state"
DOWNS: Final = "/sys/class/infiniband/{nic}/ports/1/counters/link_downed"
SYSFS: Final = Path("/sys")
NVIDIA: Final = "0x10de"
DISPLAY: Final = "0x03"
"""The class of display controllers, to which GPUs belong."""
MAX_NUMBER: Final = 64
MAX_FILE: Final = 1 << 24


def has_nics(template: str | None = None) -> bool:
    """Return whether the node has a NIC whose link state can be read."""
    return bool(_nics(template or STATE))


def check_links(template: str | None = None) -> list[CheckResult]:
    """Return the link state of each NIC; a port that is not active may be one that nobody uses.

    Args:
        template: the path of a NIC's state, with `{nic}` for its name; None for that of sysfs.
    """
    return [_link(nic, _file(template or STATE, nic)) for nic in _nics(template or STATE)] or [
        CheckResult(NIC, "", Status.UNKNOWN, "there are no NICs", is_absent=True)
    ]


def _link(nic: str, file: Path) -> CheckResult:
    """Return the state of a link, of which the kernel writes `4: ACTIVE`."""
    try:
        state = file.read_text(encoding="ascii", errors="replace")[:MAX_NUMBER].strip()
    except OSError as error:
        return CheckResult(NIC, nic, Status.UNKNOWN, f"{file}: {error.strerror}")
    name = state.partition(":")[2].strip() or state
    levels = ((f"link {nic} active", int(name == "ACTIVE")),)
    return CheckResult(NIC, nic, Status.HEALTHY, f"the link is {name}", levels=levels)


def check_link_downs(
    template: str | None = None, topology: str | None = None, *, sysfs: Path = SYSFS, gpu: str | None = None
) -> list[CheckResult]:
    """Return the link-down counter of each NIC that is next to a GPU; of all NICs where none is.

    Args:
        template: the path of a NIC's counter, with `{nic}` for its name; None for that of sysfs.
        topology: a topology file of NCCL; None for the PCI tree of sysfs.
        sysfs: where that is mounted.
        gpu: the bus id of the only GPU whose NIC is read; None for all.
    """
    nics = _nics(template or DOWNS)
    try:
        nearest = nearest_nics(*_places(nics, topology, sysfs))
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        return [CheckResult(NIC, "", Status.UNKNOWN, f"{topology or sysfs}: {text}")]
    chosen = sorted({nic for each, nic in nearest.items() if gpu is None or each == gpu}) or nics
    return [_counter(nic, _file(template or DOWNS, nic)) for nic in chosen] or [
        CheckResult(NIC, "", Status.UNKNOWN, "there are no NICs", is_absent=True)
    ]


def _counter(nic: str, file: Path) -> CheckResult:
    try:
        count = int(file.read_text(encoding="ascii", errors="replace")[:MAX_NUMBER])
    except OSError as error:
        return CheckResult(NIC, nic, Status.UNKNOWN, f"{file}: {error.strerror}")
    except ValueError:
        return CheckResult(NIC, nic, Status.UNKNOWN, f"{file} holds no number")
    return CheckResult(
        NIC, nic, Status.HEALTHY, f"its link was lost {count} times since the counter was cleared",
        counters=((f"link-down counter of {nic}", count),),
    )  # fmt: skip


def _nics(template: str) -> list[str]:
    """Return the names for which the path of a template exists."""
    folder, _, rest = template.partition("{nic}")
    parent, _, start = folder.rpartition("/")
    end = rest.partition("/")[0]
    try:
        names = sorted(each.name for each in Path(parent or "/").iterdir())
    except OSError:
        return []
    found = [name[len(start) : len(name) - len(end)] for name in names if name.startswith(start) and name.endswith(end)]
    return [name for name in found if name and Path(template.format(nic=name)).exists()]


def _file(template: str, nic: str) -> Path:
    return Path(template.replace("{nic}", nic))


def _places(nics: list[str], topology: str | None, sysfs: Path) -> tuple[dict[str, Chain], dict[str, Chain]]:
    """Return the places of GPUs, by bus id, and of NICs, by name."""
    bus_ids = {nic: (sysfs / "class/infiniband" / nic / "device").resolve().name.lower() for nic in nics}
    gpus = {path.name.lower(): path for path in sorted((sysfs / "bus/pci/devices").glob("*")) if _is_gpu(path)}
    if topology is None:
        root = (sysfs / "devices").resolve()
        places = {nic: (sysfs / "class/infiniband" / nic / "device").resolve() for nic in nics}
        return (
            {gpu: _chain(path.resolve(), root) for gpu, path in gpus.items()},
            {nic: _chain(path, root) for nic, path in places.items()},
        )
    with open(topology, encoding="utf-8", errors="replace") as file:
        chains = chains_of_topology(file.read(MAX_FILE))
    return (
        {gpu: chains[gpu] for gpu in gpus if gpu in chains},
        {nic: chains[each] for nic, each in bus_ids.items() if each in chains},
    )


def _chain(path: Path, root: Path) -> Chain:
    """Return the bridges above a device, and itself; none where it is not below `root`."""
    return path.relative_to(root).parts if path.is_relative_to(root) else ()


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text(encoding="ascii", errors="replace") for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor.strip() == NVIDIA and kind.startswith(DISPLAY)
