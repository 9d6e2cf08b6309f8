"""An NVML whose GPUs are in the JSON file that NVRX_TEST_NVML names, in the place of nvidia-ml-py."""

import ctypes
import json
import os
import signal

NVML_SUCCESS = 0
NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = 2, 3, 4
NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_FUNCTION_NOT_FOUND = 9, 12, 13
NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED, NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 15, 16, 25
NVML_FEATURE_DISABLED, NVML_FEATURE_ENABLED = 0, 1
NVML_NVLINK_MAX_LINKS = 18
nvmlEccSramErrorStatus_v1 = 0x1000068
nvmlMemory_v2 = 0x2000028
RESERVED = 600 << 20
_GPUS = []


class NVMLError(Exception):
    """An error by its number."""

    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


class c_nvmlEccSramErrorStatus_v1_t:  # noqa: N801
    """As in NVML."""

    version, bThresholdExceeded = 0, 0  # noqa: N815


class _Value:
    def __init__(self, number, code):
        self.nvmlReturn, self.value = code, ctypes.c_uint(number)
        self.value.uiVal = number


def nvmlInit():
    with open(os.environ["NVRX_TEST_NVML"], encoding="utf-8") as file:
        found = json.load(file)
    if "error" in found:
        raise NVMLError(found["error"])
    _GPUS[:] = found["gpus"]


def nvmlDeviceGetCount():
    return len(_GPUS)


def nvmlDeviceGetHandleByIndex(number):
    gpu = _GPUS[number] | {"number": number}
    if "error" in gpu:
        raise NVMLError(gpu["error"])
    return gpu


def nvmlDeviceGetHandleByUUID(uuid):
    return nvmlDeviceGetHandleByIndex(next(n for n, gpu in enumerate(_GPUS) if gpu.get("uuid") == uuid))


def nvmlDeviceGetPciInfo(handle):
    class Info:
        busId = f"00000000:{0x10 + handle['number']:02X}:00.0".encode()  # noqa: N815

    return Info


def nvmlDeviceGetFieldValues(handle, fields):
    assert fields == [230]
    if handle.get("hangs"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.pause()
    if "action" not in handle:
        return [_Value(0, NVML_ERROR_NOT_SUPPORTED)]
    return [_Value(handle["action"], NVML_SUCCESS)]


def nvmlDeviceGetRemappedRows(handle):
    if "rows" not in handle:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return handle["rows"]


def nvmlDeviceGetSramEccErrorStatus(handle, status):
    if "sram" not in handle:
        raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND)
    status.bThresholdExceeded = handle["sram"]


def nvmlDeviceGetNvLinkState(handle, number):
    links = handle.get("links", [])
    if number >= len(links):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return links[number]


def nvmlDeviceGetMemoryInfo(handle, version=None):
    """The first version counts what the driver reserves as used."""
    if "memory" not in handle:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    if version is not None and handle.get("memory_v1"):
        raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND)
    if handle["memory"] == "hangs":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.pause()

    class Memory:
        used, total = (size << 20 for size in handle["memory"])

    if version is None:
        Memory.used += RESERVED
    return Memory
