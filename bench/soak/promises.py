"""Rules for every answer of the pool at any moment: nothing is promised twice, no tenant has more than its limit. Pure.

The shapes are those of the API, as decoded from JSON: allocations, devices, MIG layouts, quotas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
MIB = 1 << 20
_TOGETHER = {"brokered": "vgpu"}  # a brokered program shares the card as any slice does
_EPSILON = 1e-6


def promised(
    allocations: Sequence[Json], devices: Sequence[Json], profiles: Mapping[tuple[str, str], int]
) -> list[str]:
    """Return what is promised twice; ``profiles`` are the memory slices of each MIG profile, by device and name."""
    found: list[str] = []
    for device in devices:
        parts = [
            (allocation, part)
            for allocation in allocations
            if allocation["state"] != "pending"
            for part in allocation["slices"]
            if part["device"] == device["uuid"]
        ]
        found += [f"device {device['index']}: {text}" for text in _of_device(device, parts, profiles)]
    return found


def _of_device(device: Json, parts: Sequence[tuple[Json, Json]], profiles: Mapping[tuple[str, str], int]) -> list[str]:
    found: list[str] = []
    modes: set[str] = {_TOGETHER.get(str(a["mode"]), str(a["mode"])) for a, _ in parts}
    whose = ", ".join(f"{a['id']} {a['mode']} {p['memory_mib']} MiB {p['core_percent']}%" for a, p in parts)
    if len(modes) > 1:
        found.append(f"given in modes {' and '.join(sorted(modes))} at once: {whose}")
    if "exclusive" in modes and len(parts) > 1:
        found.append(f"given as a whole and to others: {whose}")
    if "mig" in modes:
        return found + _overlaps(device, [part for _, part in parts], profiles)
    memory_mib = sum(part["memory_mib"] - part["spill_mib"] for _, part in parts)
    if 0 < device["memory_mib"] < memory_mib:
        found.append(f"{memory_mib} MiB of {device['memory_mib']} MiB promised: {whose}")
    if modes & {"timeslice", "exclusive"}:
        if "timeslice" in modes and len(parts) > device["replicas"]:
            found.append(f"{len(parts)} tenants in turns, {device['replicas']} replicas: {whose}")
        return found
    core_percent = sum(part["core_percent"] for a, part in parts if a["policy"] != "best-effort")
    if core_percent > 100:
        found.append(f"{core_percent} % of its compute promised: {whose}")
    return found


def _overlaps(device: Json, parts: Sequence[Json], profiles: Mapping[tuple[str, str], int]) -> list[str]:
    """Return instances that overlap; compute instances of one GPU instance share its placement."""
    places: dict[tuple[str, int, int], int] = {}
    for part in parts:
        key = (part["profile"], part["start"], part["part"])
        places[key] = places.get(key, 0) + 1
    found = [f"{name} at {start} given {count} times" for (name, start, _), count in places.items() if count > 1]
    taken: dict[int, tuple[str, int]] = {}
    for name, start in {(name.rpartition("c.")[2], start) for name, start, _ in places}:
        for slice_ in range(start, start + profiles.get((device["uuid"], name), 1)):
            if slice_ in taken:
                found.append(f"{name} at {start} lies on {taken[slice_][0]} at {taken[slice_][1]}")
                break
            taken[slice_] = (name, start)
    return found


def above_quota(quotas: Sequence[Json]) -> list[str]:
    """Return tenants and projects that hold more than they may."""
    return [
        f"{quota['tenant']}/{quota['project']}: {quota['allocated']:g} devices of a limit of {quota['limit']:g}"
        for quota in quotas
        if quota["limit"] is not None and quota["allocated"] > quota["limit"] + _EPSILON
    ]


def above_slice(
    allocations: Sequence[Json], devices: Sequence[Json], processes: Mapping[int, Mapping[int, int]]
) -> list[str]:
    """Return slices that hold more on the card than was granted, by the card's accounts.

    A slice without an amount may have the whole card. ``processes``: bytes by pid and index of the card, contexts included.
    """
    found: list[str] = []
    totals = {device["uuid"]: device["memory_mib"] for device in devices}
    for allocation in allocations:
        for part in allocation["slices"]:
            limit_mib = part["memory_mib"] or totals.get(part["device"], 0)
            used = sum(processes.get(pid, {}).get(part["device_index"], 0) for pid in allocation["pids"])
            if used > limit_mib * MIB:
                found.append(
                    f"{allocation['id']} ({allocation['mode']}) has {used / MIB:.1f} MiB of device {part['device_index']}, "
                    f"granted {limit_mib} MiB"
                )
    return found
