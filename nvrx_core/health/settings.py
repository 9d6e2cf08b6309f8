"""The settings of health checks, which the launcher's configuration includes and `nvrx-health` takes alone."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.base import Settings
from nvrx_core.settings.forms import BOOLEAN, INTEGER, PATH, PATHS, SECONDS, TEXT
from nvrx_core.settings.parameter import POSITIVE, ValueRule, at_least, setting
from nvrx_core.settings.spelling import Spelling

__all__ = ["HealthSettings", "check_endpoint", "socket_path"]

MAX_SOCKET_PATH: Final = 107
"""Bytes of the path of a Unix socket, unix(7)."""
_NIC_PATH: Final = replace(PATH, example="/sys/class/infiniband/{nic}/ports/1/state")
_HAS_NIC: Final = ValueRule("one that has {nic} in it", lambda path: "{nic}" in path)
_ABSOLUTE: Final = ValueRule(
    "absolute, each of them",
    lambda paths: all(path.strip().startswith("/") for path in paths.split(",")),
)
_ENDPOINT: Final = replace(TEXT, text="the endpoint of a Unix socket", example="unix:///var/run/nvhcd.sock")
_UNIX: Final = ValueRule("an absolute path, or unix:// and one", lambda text: socket_path(text) is not None)


def socket_path(endpoint: str) -> str | None:
    """Return the path of a Unix socket, given as such or after `unix://` or `unix:`; None for any other endpoint."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else endpoint.removeprefix("unix:")
    is_path = path.startswith("/") and "\0" not in path and len(os.fsencode(path)) <= MAX_SOCKET_PATH
    return path if is_path else None


def check_endpoint(endpoint: str | None) -> None:
    """Check that what is at the endpoint of the health service, if anything, is a Unix socket.

    Raises:
        ConfigurationError: when it is another file.
    """
    path = socket_path(endpoint) if endpoint is not None else None
    if path is None:
        return
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return  # the service may come later
    if not is_socket:
        name = HealthSettings.spelling.flag("node_health_check_endpoint")
        raise ConfigurationError("health checks", name, f"{path} is no Unix socket", "name the socket of the service")


@dataclass
class HealthSettings(Settings):
    """Settings of health checks. Times are float seconds.

    Raises:
        ConfigurationError: when a value is wrong, or a name does not exist.
    """

    spelling: ClassVar[Spelling] = Spelling(section="fault_tolerance", prefix="ft")

    enable_gpu_healthcheck: bool = setting(
        True, BOOLEAN, "Check GPUs and NVLinks where the node has an NVIDIA driver: before a rendezvous and during "
        "training.",
    )  # fmt: skip
    enable_nic_healthcheck: bool = setting(
        True, BOOLEAN, "Check that NIC ports that were active still are: before a rendezvous and during training."
    )
    enable_nic_monitor: bool = setting(
        False, BOOLEAN, "Watch the link-down counters of the NICs that are next to a GPU; one that rises is a failure."
    )
    pci_topo_file: str | None = setting(
        None, PATH, "PCI topology in the XML format of NCCL, which says which NIC is next to which GPU."
    )
    link_down_path_template: str | None = setting(
        None, _NIC_PATH, "Path of a NIC's link-down counter; holds `{nic}`. "
        "None: /sys/class/infiniband/{nic}/ports/1/counters/link_downed.", rule=_HAS_NIC,
    )  # fmt: skip
    link_state_path_template: str | None = setting(
        None, _NIC_PATH, "Path of a NIC's link state; holds `{nic}`. None: /sys/class/infiniband/{nic}/ports/1/state.",
        rule=_HAS_NIC,
    )  # fmt: skip
    enable_dist_storage_healthcheck: bool = setting(
        False, BOOLEAN, "Check before a rendezvous that Lustre is healthy and that Lustre and NFS mounts answer."
    )
    storage_healthcheck_path: str | None = setting(
        None, PATHS, "Absolute paths that must be readable before a rendezvous, with commas between them.",
        rule=_ABSOLUTE, aliases=("storage_health_check_path",),
    )  # fmt: skip
    node_health_check_endpoint: str | None = setting(
        None, _ENDPOINT, "Unix socket of the node's health service (nvhcd), which is asked before a rendezvous. A "
        "service that is not there is skipped.", rule=_UNIX,
    )  # fmt: skip
    node_health_check_interval: float = setting(
        5.0, SECONDS, "Time between two checks of GPUs and NICs during training.", rule=POSITIVE
    )
    health_check_failures: int = setting(
        3, INTEGER, "So many failed checks in a row exclude a node during training; before a rendezvous one does.",
        rule=at_least(1),
    )  # fmt: skip
    health_check_timeout: float = setting(
        60.0, SECONDS, "Longest time of all checks of a node together, which run side by side.", rule=POSITIVE
    )
    health_strict: bool = setting(
        False, BOOLEAN, "A check whose outcome is unknown counts as failed, unless there is nothing to check."
    )
    on_exclude: str | None = setting(
        None, TEXT, "Command that is run, without a shell, when this node is excluded; NVRX_EXCLUDED_NODE is its name "
        "and NVRX_EXCLUDE_REASON says why.",
    )  # fmt: skip

    @property
    def storage_paths(self) -> tuple[str, ...]:
        """The paths of `storage_healthcheck_path`."""
        return tuple(path for each in (self.storage_healthcheck_path or "").split(",") if (path := each.strip()))
