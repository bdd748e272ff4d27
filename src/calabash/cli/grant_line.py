"""Format a granted allocation as one line. Imports no slow modules."""

from __future__ import annotations

from calabash.model.units import format_mib

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_COMPUTE = {"fixed": "{}% of compute", "burst": "at least {}% of compute", "best-effort": "best-effort compute"}


def described(granted: Mapping[str, Any]) -> str:
    """Return an allocation as a line: ``a4vr2z6kk: 8GiB and best-effort compute of device 0 (H200), mode vgpu``."""
    slices = granted["slices"]
    devices = ", ".join(f"{part['device_index']} ({part['device_model']})" for part in slices)
    several = "each of devices" if len(slices) > 1 else "device"
    return f"{granted['id']}: {_amounts(granted, slices[0])} of {several} {devices}, mode {granted['mode']}"


def compute(policy: str, percent: int) -> str:
    """Return a compute share in words, as its policy guarantees it: ``at least 30% of compute`` with policy burst."""
    return _COMPUTE.get(policy, _COMPUTE["fixed"]).format(percent)


def share(part: Mapping[str, Any]) -> str:
    """Return a compute share for a column: ``30%``, or ``best-effort`` where none is promised."""
    return "best-effort" if part.get("policy") == "best-effort" else f"{part['core_percent']}%"


def _amounts(granted: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    if part.get("profile"):
        return f"{part['profile']}"
    if granted["mode"] in ("exclusive", "passthrough"):
        return "all"
    memory = format_mib(part["memory_mib"]) if part["memory_mib"] else "memory without a limit"
    if part.get("spill_mib"):
        memory += f" ({format_mib(part['memory_mib'] - part['spill_mib'])} on the device)"
    if not part["core_percent"]:
        return f"{memory} and time windows"
    return f"{memory} and {compute(granted['policy'], part['core_percent'])}"
