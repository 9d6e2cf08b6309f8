"""What the readings of a GPU say about it. Pure.

The driver's recovery action decides (field NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, from driver 570 on). Beside it: a GPU
that is lost or waits for a reset, a failed row remapping, and SRAM errors above their threshold. Errors that the GPU
has contained are no failure: the driver asks for a reset where one is needed.

Xids are those of the kernel log after which NVIDIA's catalogue asks for a reset, a reboot or a replacement; as the log
keeps old ones, only one that is new since the first check is a failure (`Baseline`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from nvrx_core.health.result import CheckResult, Status
from nvrx_core.values import value

__all__ = [
    "GPU",
    "MEMORY",
    "NVLINK",
    "GpuReadings",
    "LinkReadings",
    "bus_of",
    "judge_gpu",
    "judge_links",
    "memory_result",
    "xids_in",
]

GPU: Final = "gpu"
NVLINK: Final = "nvlink"
MEMORY: Final = "gpu-memory"
"""How much memory of a GPU is in use: a reading, by which no node is unhealthy."""
NO_ACTION: Final = 0
ACTIONS: Final = {
    1: "reset the GPU", 2: "reboot the node", 3: "drain peer-to-peer traffic", 4: "drain and reset the GPU",
    5: "recover the IMEX domain", 6: "reset the bus", 7: "reboot the system",
}  # fmt: skip
"""NVML_GPU_RECOVERY_ACTION_*, as the driver reports them."""
SERIOUS_XIDS: Final = frozenset({62, 64, 79, 95, 119, 120, 140, 143})
_XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


@value
class GpuReadings:
    """What NVML says of a GPU; None where it does not.

    Attributes:
        name: for people, such as `GPU 0 (0000:3b:00.0)`.
        lost: the error by which NVML says that the GPU is lost or must be reset.
        failed: another error of NVML, which leaves the state of the GPU unknown.
        action: the recovery action.
        remap_failed: a memory row could not be remapped.
        remap_pending: a row is remapped at the next reset.
        sram_exceeded: the errors of the SRAM have passed their threshold.
        xids: how often each serious Xid is in the kernel log.
    """

    name: str
    lost: str | None = None
    failed: str | None = None
    action: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    sram_exceeded: bool | None = None
    xids: tuple[tuple[int, int], ...] = ()


@value
class LinkReadings:
    """The NVLinks of a GPU that it has, by number, and whether each is active.

    Attributes:
        name: for people.
        links: the links.
        failed: the error of NVML that leaves them unknown.
    """

    name: str
    links: tuple[tuple[int, bool], ...] = ()
    failed: str | None = None

    @property
    def active(self) -> int:
        """How many are active."""
        return sum(is_active for _, is_active in self.links)


def judge_gpu(found: GpuReadings) -> CheckResult:
    """Return the state of a GPU."""
    problems = list[str]()
    if found.lost is not None:
        problems.append(found.lost)
    if found.action not in (None, NO_ACTION):
        problems.append(f"the driver asks for a recovery: {ACTIONS.get(found.action or 0, f'action {found.action}')}")
    if found.remap_failed:
        problems.append("a memory row could not be remapped")
    if found.sram_exceeded:
        problems.append("uncorrectable errors of the SRAM have passed their threshold")
    if problems:
        return CheckResult(GPU, found.name, Status.UNHEALTHY, "; ".join(problems))
    if found.failed is not None:
        return CheckResult(GPU, found.name, Status.UNKNOWN, found.failed)
    reason = "no recovery is asked for" if found.action == NO_ACTION else "it answers, without a recovery action"
    if found.remap_pending:
        reason += "; a memory row is remapped at the next reset"
    # one that has not occurred is a counter as well: the first one must be seen to rise
    xids = dict.fromkeys(sorted(SERIOUS_XIDS), 0) | dict(found.xids)
    counters = tuple((f"count of Xid {code}", count) for code, count in xids.items())
    return CheckResult(GPU, found.name, Status.HEALTHY, reason, counters=counters)


def judge_links(found: Iterable[LinkReadings]) -> list[CheckResult]:
    """Return the state of the NVLinks of each GPU of a node.

    Links that are not active may have nothing at their other end. So a GPU is unhealthy by comparison: it has active
    links, and fewer than most GPUs of the node that have any. One that has lost a link since the first check is found
    by `Baseline`.
    """
    gpus = list(found)
    counts = Counter(each.active for each in gpus if each.active)
    usual, alike = counts.most_common(1)[0] if counts else (0, 0)
    is_usual = 2 * alike > counts.total()
    return [_judge_links(each, usual if is_usual else 0) for each in gpus]


def _judge_links(found: LinkReadings, usual: int) -> CheckResult:
    if found.failed is not None:
        return CheckResult(NVLINK, found.name, Status.UNKNOWN, found.failed)
    if not found.links:
        return CheckResult(NVLINK, found.name, Status.UNKNOWN, "it has no NVLinks", is_absent=True)
    levels = tuple((f"link {number} active", int(is_active)) for number, is_active in found.links)
    reason = f"{found.active} of {len(found.links)} links are active"
    if 0 < found.active < usual:
        down = ", ".join(str(number) for number, is_active in found.links if not is_active)
        reason = f"{reason}, and {usual} on the other GPUs; not active: {down}"
        return CheckResult(NVLINK, found.name, Status.UNHEALTHY, reason, levels=levels)
    return CheckResult(NVLINK, found.name, Status.HEALTHY, reason, levels=levels)


def memory_result(name: str, used: int, total: int) -> CheckResult:
    """Return the reading of a GPU's memory, in bytes."""
    reason = f"{used >> 20} of {total >> 20} MB are in use"
    return CheckResult(MEMORY, name, Status.HEALTHY, reason, counters=(("used", used), ("total", total)))


def bus_of(bus_id: str) -> str:
    """Return a PCI bus id as sysfs has it: `0000:3b:00.0` of NVML's `00000000:3B:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}"


def xids_in(log: Iterable[str]) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Return how often each serious Xid is in lines of the kernel log, by the bus of the GPU without its function."""
    found = dict[str, Counter[int]]()
    for line in log:
        if (match := _XID.search(line)) and int(match[2]) in SERIOUS_XIDS:
            found.setdefault(bus_of(match[1]).partition(".")[0], Counter())[int(match[2])] += 1
    return {bus: tuple(sorted(counts.items())) for bus, counts in found.items()}
