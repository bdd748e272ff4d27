"""Convert pods that request devices to rows: their request, devices, queue and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from calabash.cli.grant_line import share
from calabash.cli.kubectl.access import age_s
from calabash.cli.output import Row
from calabash.model.units import format_mib

if TYPE_CHECKING:
    from calabash.adapters.kube.objects.core import Condition, Pod
    from calabash.adapters.kube.objects.resources import GpuNode, GpuNodeSlice
    from calabash.kubernetes.pod_request import PodRequest

Held = tuple[int, "GpuNodeSlice"]  # index of the device, and what is held of it
ENDED = ("Succeeded", "Failed")


def held_by_pod(nodes: Sequence[GpuNode]) -> dict[str, list[Held]]:
    """Return the slices that each pod holds, by pod UID."""
    found: dict[str, list[Held]] = {}
    for node in nodes:
        for device in node.status.devices:
            for part in device.slices:
                found.setdefault(part.pod_uid, []).append((device.index, part))
    return found


def row(pod: Pod, held: Sequence[Held]) -> Row:
    """Return the row of a pod for ``kubectl calabash ps``."""
    meta = pod.metadata
    condition = waits_for(pod)
    return {
        "namespace": meta.namespace,
        "pod": meta.name,
        "state": "Terminating" if meta.deletion_timestamp else pod.status.phase or "Pending",
        "node": pod.spec.node_name,
        "slices": [
            {
                "container": part.container,
                "device_index": index,
                "mode": part.mode,
                "policy": part.policy,
                "memory_mib": part.memory_mib,
                "core_percent": part.core_percent,
            }
            for index, part in held
        ],
        "age_s": age_s(meta.creation_timestamp),
        "reason": condition.reason if condition is not None else "",
    }


def waits_for(pod: Pod) -> Condition | None:
    """Return the condition that explains why the pod is not placed; None if it is placed."""
    return next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), None)


def waits(pod: Pod) -> bool:
    """Return True if the pod has no node and has not ended."""
    return not pod.spec.node_name and not pod.metadata.deletion_timestamp and pod.status.phase not in ENDED


def runs(pod: Pod) -> bool:
    """Return True if the pod has a node and has not ended."""
    return bool(pod.spec.node_name) and pod.status.phase not in ENDED


def amounts(slices: Sequence[Row]) -> str:
    """Return the amounts of slices, such as ``30% 8GiB``; equal ones are counted, such as ``2x 30% 8GiB``."""
    texts = [f"{share(s)} {_memory(s)}" for s in slices]
    counted = {text: texts.count(text) for text in texts}
    return ", ".join(f"{count}x {text}" if count > 1 else text for text, count in counted.items()) or "-"


def _memory(part: Row) -> str:
    if part.get("memory_milli"):
        return f"{part['memory_milli'] / 10:g}% of memory"
    return format_mib(part["memory_mib"]) if part["memory_mib"] else "whole"


def request_of(pod: Pod) -> PodRequest | None:
    """Return the request that admission recorded; None if there is none or it cannot be decoded."""
    from calabash.kubernetes.objects.names import REQUEST  # noqa: PLC0415
    from calabash.kubernetes.pod_request import read_request  # noqa: PLC0415
    from calabash.model.errors import CalabashError  # noqa: PLC0415

    text = pod.metadata.annotations.get(REQUEST)
    try:
        return read_request(text) if text is not None else None
    except CalabashError:
        return None


def membership_of(pod: Pod) -> str:
    """Return owner, role and gang of a pod in words; "" if its owner forms no gang."""
    from calabash.kubernetes.gang_member import read_member  # noqa: PLC0415
    from calabash.kubernetes.objects.names import GANG_MEMBER  # noqa: PLC0415
    from calabash.model.errors import CalabashError  # noqa: PLC0415

    try:
        member = read_member(pod.metadata.annotations.get(GANG_MEMBER, ""))
    except CalabashError:
        return ""
    if not member.described:
        return ""
    size = f", of which {member.size} start together" if member.size > 1 else ""
    return f"member of {member.described}: gang {member.gang}{size}"


def asked(pod: Pod) -> list[Row]:
    """Return the requested devices, one row for each device of each container."""
    request = request_of(pod)
    containers = request.containers if request is not None else ()
    return [
        {
            "container": part.container,
            "memory_mib": part.request.memory_mib or 0,
            "memory_milli": part.request.memory_milli or 0,
            "core_percent": part.request.core_percent,
            "policy": part.request.policy,
        }
        for part in containers
        for _ in range(part.request.count)
    ]


def queue_of(pod: Pod, queues: Mapping[str, str]) -> str:
    """Return the queue that the pod requests, else that of its namespace; "" if the user may not read namespaces."""
    request = request_of(pod)
    return (request.queue if request is not None else "") or queues.get(pod.metadata.namespace, "")


def waiting_row(pod: Pod, queue: str) -> Row:
    """Return the row of a waiting pod for the table of waiting pods."""
    condition = waits_for(pod)
    request = request_of(pod)
    return {
        "namespace": pod.metadata.namespace,
        "pod": pod.metadata.name,
        "queue": queue,
        "priority": pod.spec.priority or 0,
        "gang": request.containers[0].request.gang if request is not None else "",
        "asked": asked(pod),
        "age_s": age_s(pod.metadata.creation_timestamp),
        "reason": condition.reason if condition is not None else "",
        "message": condition.message if condition is not None else "",
    }


def in_turn(waiting: Sequence[Pod], holds: Mapping[str, float]) -> list[Pod]:
    """Sort waiting pods as a queue serves them: by priority, by what their namespace holds, by age.

    Args:
        holds: number of devices that the pods of each namespace hold.
    """
    return sorted(
        waiting,
        key=lambda pod: (
            -(pod.spec.priority or 0),
            holds.get(pod.metadata.namespace, 0.0),
            pod.metadata.creation_timestamp or "",
            pod.metadata.namespace,
            pod.metadata.name,
        ),
    )
