"""Device status of a claim (``status.devices``): the condition ``Ready`` and the data of each allocated device."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from calabash.adapters.kube.objects.claims import AllocatedDeviceStatus, ResourceClaim
from calabash.kubernetes.claims.allocated import ClaimPlan
from calabash.kubernetes.claims.device_names import DRIVER, claim_devices
from calabash.kubernetes.objects.plan import PlannedSlice
from calabash.model.device import OUT_OF_SERVICE, Device, DeviceUuid
from calabash.model.request import AllocationId, ComputePolicy

READY = "Ready"
_MESSAGE_MAX = 1024
_FIELDS = ("memory_mib", "core_percent", "profile", "start", "spill_mib")
_NAMES = {"memory_mib": "memoryMib", "core_percent": "corePercent", "spill_mib": "spillMib"}
_ABSENT = ("", 0, -1)


def claim_status(
    claim: ResourceClaim,
    plan: ClaimPlan,
    allocation: AllocationId | None,
    cards: Mapping[DeviceUuid, Device],
    causes: Mapping[DeviceUuid, str],
) -> list[dict[str, Any]] | None:
    """Return the device status that this driver reports in a claim; None if the claim already has it.

    Args:
        claim: the claim object.
        plan: the slices and devices that are allocated to the claim.
        allocation: ID of the allocation on the node; None if there is none, because the claim has admin access only.
        cards: the devices of the node.
        causes: the causes of unhealthy devices.
    """
    names = {one.name: one.device.uuid for one in claim_devices(tuple(cards.values()))}
    said = {(d.pool, d.device, d.share_id or ""): d for d in claim.status.devices if d.driver == DRIVER}
    wanted: list[dict[str, Any]] = []
    for request in plan.requests:
        parts = {DeviceUuid(part.device): part for part in request.slices}
        for device, share in zip(request.devices, request.share_ids, strict=True):
            part = parts[names[device]]
            card = cards.get(DeviceUuid(part.device))
            ready, why = _readiness(card, part, plan, causes)
            one: dict[str, Any] = {
                "driver": DRIVER,
                "pool": request.pool,
                "device": device,
                "conditions": [
                    {
                        "type": READY,
                        "status": "True" if ready else "False",
                        "reason": "Prepared" if ready else "Unhealthy",
                        "message": why[:_MESSAGE_MAX],
                    }
                ],
                "data": _data(part, plan, allocation),
            }
            wanted.append(one | ({"shareID": share} if share else {}))
    if all(_says(said.get((one["pool"], one["device"], one.get("shareID", ""))), one) for one in wanted):
        return None
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for one in wanted:
        before = said.get((one["pool"], one["device"], one.get("shareID", "")))
        one["conditions"][0]["lastTransitionTime"] = _since(before, one["conditions"][0]["status"]) or now
    return wanted


def _readiness(
    card: Device | None, part: PlannedSlice, plan: ClaimPlan, causes: Mapping[DeviceUuid, str]
) -> tuple[bool, str]:
    uuid = DeviceUuid(part.device)
    if card is None or card.health in OUT_OF_SERVICE:
        return False, causes.get(uuid) or (
            "the device no longer exists" if card is None else f"the device is {card.health.value}"
        )
    if plan.admin_access:
        return True, "admin access: the device can be observed"
    memory = f"{part.memory_mib} MiB" if part.memory_mib else "memory without a cap"
    promised = part.core_percent and plan.policy is not ComputePolicy.BEST_EFFORT
    cores = f", {part.core_percent} % of its time" if promised else ", best-effort compute" if part.core_percent else ""
    return True, f"{plan.mode}: {part.profile or memory}{cores} of {card.model}"


def _data(part: PlannedSlice, plan: ClaimPlan, allocation: AllocationId | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"uuid": part.device, "mode": plan.mode or "admin"}
    if allocation is None:
        return facts
    given = {_NAMES.get(name, name): value for name in _FIELDS if (value := getattr(part, name)) not in _ABSENT}
    return facts | given | {"policy": plan.policy.value, "allocation": str(allocation)}


def _says(before: AllocatedDeviceStatus | None, one: Mapping[str, Any]) -> bool:
    if before is None or before.data != one["data"]:
        return False
    wanted = one["conditions"][0]
    return any(
        (c.type, c.status, c.reason, c.message)
        == (wanted["type"], wanted["status"], wanted["reason"], wanted["message"])
        for c in before.conditions
    )


def _since(before: AllocatedDeviceStatus | None, status: str) -> str | None:
    found = (c for c in (before.conditions if before is not None else ()) if c.type == READY and c.status == status)
    return next((c.last_transition_time for c in found), None)
