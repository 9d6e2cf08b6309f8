"""The readings of NVML; only this file imports its Python binding (nvidia-ml-py), when a check runs.

A call of a driver that hangs does not return: `probes.py` runs it in a process that can be left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from nvrx_core.health.gpu import (
    GPU,
    MEMORY,
    NVLINK,
    GpuReadings,
    LinkReadings,
    bus_of,
    judge_gpu,
    judge_links,
    memory_result,
    xids_in,
)
from nvrx_core.health.result import CheckResult, Status
from nvrx_core.process.kernel_log import KERNEL_LOG, kernel_lines

__all__ = ["bus_ids", "check_gpus", "check_nvlinks", "has_driver", "read_memory"]

DRIVER: Final = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia"))
RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; older bindings do not name it."""


class _NoNvmlError(Exception):
    """NVML cannot be used; `is_absent` if there is none."""

    def __init__(self, reason: str, *, is_absent: bool) -> None:
        super().__init__(reason)
        self.is_absent = is_absent


def has_driver() -> bool:
    """Return whether the node has an NVIDIA driver."""
    return any(path.exists() for path in DRIVER)


def check_gpus(devices: Sequence[str] = ()) -> Iterator[CheckResult]:
    """Yield the state of each GPU as soon as it is known.

    Args:
        devices: numbers or UUIDs of the GPUs; empty for all that NVML sees.
    """
    try:
        xids = xids_in(kernel_lines(KERNEL_LOG))
        for nvml, handle, name in _gpus(devices):
            yield judge_gpu(_read_gpu(nvml, handle, name, xids=xids))
    except _NoNvmlError as error:
        yield CheckResult(GPU, "", Status.UNKNOWN, str(error), is_absent=error.is_absent)


def check_nvlinks(devices: Sequence[str] = ()) -> list[CheckResult]:
    """Return the state of the NVLinks of each GPU.

    Args:
        devices: numbers or UUIDs of the GPUs; empty for all that NVML sees.
    """
    try:
        return judge_links(_read_links(nvml, handle, name) for nvml, handle, name in _gpus(devices))
    except _NoNvmlError as error:
        return [CheckResult(NVLINK, "", Status.UNKNOWN, str(error), is_absent=error.is_absent)]


def read_memory(devices: Sequence[str] = ()) -> Iterator[CheckResult]:
    """Yield how much memory of each GPU is in use, as soon as it is known.

    Args:
        devices: numbers or UUIDs of the GPUs; empty for all that NVML sees.
    """
    try:
        for nvml, handle, name in _gpus(devices):
            try:
                if isinstance(handle, nvml.NVMLError):
                    raise handle
                found = _memory(nvml, handle)
            except nvml.NVMLError as error:
                yield CheckResult(MEMORY, name, Status.UNKNOWN, f"NVML: {error}")
            else:
                yield memory_result(name, int(found.used), int(found.total))
    except _NoNvmlError as error:
        yield CheckResult(MEMORY, "", Status.UNKNOWN, str(error), is_absent=error.is_absent)


def bus_ids(devices: Sequence[str]) -> list[str]:
    """Return the bus ids of GPUs, as sysfs has them; none of a GPU that NVML does not find."""
    try:
        return [name.partition("(")[2].rstrip(")") for _, handle, name in _gpus(devices) if handle is not None]
    except _NoNvmlError:
        return []


def _gpus(devices: Sequence[str]) -> Iterator[tuple[Any, Any, str]]:
    """Yield NVML, each GPU's handle, which is an error where it has none, and the GPU's name.

    Raises:
        _NoNvmlError: when NVML cannot be used.
    """
    try:
        import pynvml
    except ImportError as error:
        raise _NoNvmlError(
            f"nvidia-ml-py is not installed ({error}); pip install 'nvrx[gpu]'", is_absent=True
        ) from None
    try:
        pynvml.nvmlInit()
        found = devices or [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        without = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        raise _NoNvmlError(f"NVML cannot be used: {error}", is_absent=error.value in without) from None
    for device in found:
        by_uuid = not device.isdecimal()
        try:
            handle = (
                pynvml.nvmlDeviceGetHandleByUUID(device) if by_uuid else pynvml.nvmlDeviceGetHandleByIndex(int(device))
            )
            name = f"GPU {device} ({bus_of(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))})"
        except pynvml.NVMLError as error:
            handle, name = error, f"GPU {device}"
        yield pynvml, handle, name


def _read_gpu(nvml: Any, handle: Any, name: str, *, xids: Any) -> GpuReadings:
    if isinstance(handle, nvml.NVMLError):
        return _error(nvml, handle, name)
    try:
        action = _field(nvml, handle, RECOVERY_ACTION)
        rows = _supported(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        sram = _supported(nvml, lambda: _sram_exceeded(nvml, handle))
    except nvml.NVMLError as error:
        return _error(nvml, error, name)
    bus = name.partition("(")[2].partition(".")[0]
    return GpuReadings(
        name, action=action, remap_pending=rows and bool(rows[2]), remap_failed=rows and bool(rows[3]),
        sram_exceeded=sram, xids=xids.get(bus, ()),
    )  # fmt: skip


def _read_links(nvml: Any, handle: Any, name: str) -> LinkReadings:
    if isinstance(handle, nvml.NVMLError):
        return LinkReadings(name, failed=f"NVML: {handle}")
    links = list[tuple[int, bool]]()
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = nvml.nvmlDeviceGetNvLinkState(handle, number)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue  # the GPU has no such link
            return LinkReadings(name, failed=f"NVML: link {number}: {error}")
        links.append((number, state == nvml.NVML_FEATURE_ENABLED))
    return LinkReadings(name, tuple(links))


def _memory(nvml: Any, handle: Any) -> Any:
    """Return the memory of a GPU, by the second version: the first one counts what the driver reserves as used."""
    if hasattr(nvml, "nvmlMemory_v2"):
        found = _supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        if found is not None:
            return found
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def _error(nvml: Any, error: Any, name: str) -> GpuReadings:
    is_lost = error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)
    text = f"NVML: {error}"
    return GpuReadings(name, lost=text) if is_lost else GpuReadings(name, failed=text)


def _field(nvml: Any, handle: Any, field: int) -> int | None:
    """Return a field that is a number; None where driver or GPU do not have it."""
    found = _supported(nvml, lambda: nvml.nvmlDeviceGetFieldValues(handle, [field])[0])
    return int(found.value.uiVal) if found is not None and found.nvmlReturn == nvml.NVML_SUCCESS else None


def _sram_exceeded(nvml: Any, handle: Any) -> bool | None:
    if not hasattr(nvml, "c_nvmlEccSramErrorStatus_v1_t"):
        return None
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = nvml.nvmlEccSramErrorStatus_v1
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, status)
    return bool(status.bThresholdExceeded)


def _supported(nvml: Any, read: Callable[[], Any]) -> Any:
    """Return a reading; None where driver, binding or GPU do not have it, or no right is given to read it.

    Raises:
        NVMLError: for any other error.
    """
    unsupported = (
        nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvml.NVML_ERROR_NO_PERMISSION,
    )  # fmt: skip
    try:
        return read()
    except nvml.NVMLError as error:
        if error.value in unsupported:
            return None
        raise


def _text(found: str | bytes) -> str:
    return found.decode() if isinstance(found, bytes) else found
