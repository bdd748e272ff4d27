"""Translation of NVML errors to reasons and hints."""

from __future__ import annotations

import pynvml

from calabash.model.errors import CalabashError, Reason

_REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Reason.NO_DEVICES,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Reason.NO_DEVICES,
    pynvml.NVML_ERROR_NOT_FOUND: Reason.NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION: Reason.NOT_PERMITTED,
    pynvml.NVML_ERROR_GPU_IS_LOST: Reason.UNHEALTHY,
    pynvml.NVML_ERROR_RESET_REQUIRED: Reason.UNHEALTHY,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Reason.BAD_FILE,
    pynvml.NVML_ERROR_TIMEOUT: Reason.TIMEOUT,
    pynvml.NVML_ERROR_IN_USE: Reason.CONFLICT,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: Reason.NO_CAPACITY,
}
_HINTS = {
    Reason.NO_DEVICES: "install the NVIDIA driver, or try a simulated node: calabash sim create lab --gpus 2xA100-40GB",
    Reason.NOT_PERMITTED: "run as root",
    Reason.UNHEALTHY: "the card needs a reset or a reboot",
}


def translated(what: str, error: pynvml.NVMLError) -> CalabashError:
    """Return a CalabashError for an NVML error, with its reason and, for some, a hint."""
    reason = _REASONS.get(error.value, Reason.UNHEALTHY)
    return CalabashError(f"{what}: the NVIDIA driver reports {error}", reason=reason, hint=_HINTS.get(reason, ""))
