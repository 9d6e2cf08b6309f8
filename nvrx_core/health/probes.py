"""The checks of a node: which there are, how long each may take, and what it means when one does not return.

A mount or a path that does not answer is unhealthy. A driver or a service that does not answer leaves the outcome
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from nvrx_core.health.gpu import GPU, MEMORY, NVLINK
from nvrx_core.health.nic import NIC, check_link_downs, check_links, has_nics
from nvrx_core.health.nvml import bus_ids, check_gpus, check_nvlinks, has_driver, read_memory
from nvrx_core.health.result import CheckResult, Status
from nvrx_core.health.service import check_service
from nvrx_core.health.service_answer import SERVICE
from nvrx_core.health.settings import HealthSettings
from nvrx_core.health.storage import MOUNT_TABLE, STORAGE, check_lustre, check_mount, check_path, mounts_in
from nvrx_core.values import value

__all__ = ["CHECKS", "DRIVER_TIMEOUT", "MONITORED", "Probe", "enabled_checks", "probes_of"]

CHECKS: Final = (GPU, NVLINK, NIC, STORAGE, SERVICE)
MONITORED: Final = (GPU, NVLINK, NIC)
"""Those that run during training as well."""
DRIVER_TIMEOUT: Final = 30.0
STORAGE_TIMEOUT: Final = 15.0
NIC_TIMEOUT: Final = 10.0
MAX_MOUNTS: Final = 256


@value
class Probe:
    """A part of a check that runs in a process of its own.

    Attributes:
        check: the check.
        subject: what is checked; "" for several things, which the results name.
        timeout: seconds until it is overdue.
        overdue: what that means.
        run: returns the results, each as soon as it is known.
    """

    check: str
    subject: str
    timeout: float
    overdue: Status
    run: Callable[[], Iterable[CheckResult]]


def enabled_checks(settings: HealthSettings) -> tuple[str, ...]:
    """Return the checks that the settings enable and for which the node has something to check."""
    has_gpu = settings.enable_gpu_healthcheck and has_driver()
    is_nic_checked = settings.enable_nic_healthcheck or settings.enable_nic_monitor
    enabled = {
        GPU: has_gpu,
        NVLINK: has_gpu,
        NIC: is_nic_checked and (has_nics(settings.link_state_path_template) or settings.enable_nic_monitor),
        STORAGE: settings.enable_dist_storage_healthcheck or bool(settings.storage_paths),
        SERVICE: settings.node_health_check_endpoint is not None,
    }
    return tuple(name for name in CHECKS if enabled[name])


def probes_of(settings: HealthSettings, checks: Sequence[str], devices: Sequence[str] = ()) -> list[Probe]:
    """Return the parts of checks.

    Args:
        settings: the settings.
        checks: the checks, whether the settings enable them or not.
        devices: numbers or UUIDs of the GPUs; empty for all of the node.
    """
    found = list[Probe]()
    if GPU in checks:
        found.append(Probe(GPU, "", DRIVER_TIMEOUT, Status.UNKNOWN, lambda: check_gpus(devices)))
    if NVLINK in checks:
        found.append(Probe(NVLINK, "", DRIVER_TIMEOUT, Status.UNKNOWN, lambda: check_nvlinks(devices)))
    if MEMORY in checks:  # no check of a node: a launcher asks for it before a restart
        found.append(Probe(MEMORY, "", DRIVER_TIMEOUT, Status.UNKNOWN, lambda: read_memory(devices)))
    if NIC in checks:
        found.append(Probe(NIC, "", NIC_TIMEOUT, Status.UNKNOWN, lambda: _nics(settings, devices)))
    if STORAGE in checks:
        found += _storage(settings)
    if SERVICE in checks and (endpoint := settings.node_health_check_endpoint) is not None:
        timeout = settings.health_check_timeout
        found.append(Probe(SERVICE, "", timeout, Status.UNKNOWN, lambda: [check_service(endpoint, 0.95 * timeout)]))
    return found


def _nics(settings: HealthSettings, devices: Sequence[str]) -> Iterator[CheckResult]:
    if settings.enable_nic_healthcheck:
        yield from check_links(settings.link_state_path_template)
    if settings.enable_nic_monitor:
        template, topology = settings.link_down_path_template, settings.pci_topo_file
        for gpu in bus_ids(devices) if devices else [None]:
            yield from check_link_downs(template, topology, gpu=gpu)


def _storage(settings: HealthSettings) -> list[Probe]:
    """Return a probe for each mount and each path; those that do not answer must not hide the others."""
    runs = list[tuple[str, Callable[[], CheckResult]]]()
    if settings.enable_dist_storage_healthcheck:
        mounts = mounts_in(MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape"))
        runs.append(("Lustre", check_lustre))
        runs += [(path, lambda path=path: check_mount(path)) for path in mounts[:MAX_MOUNTS]]  # type: ignore[misc]
    runs += [(path, lambda path=path: check_path(path)) for path in settings.storage_paths]  # type: ignore[misc]
    return [Probe(STORAGE, name, STORAGE_TIMEOUT, Status.UNHEALTHY, lambda run=run: [run()]) for name, run in runs]  # type: ignore[misc]
