"""What the HTTP API shows: devices, allocations and requests as plain dictionaries."""

from __future__ import annotations

import contextlib
from typing import Any

from calabash.agent.node import NodeAgent
from calabash.agent.snapshot import SliceUse
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device
from calabash.model.errors import CalabashError
from calabash.seams.host.processes import Process, user_name
from calabash.sharing.registry import SHARING_MODES
from calabash.standalone.pool import Granted, Pending, Pool

EXPLAINED_MAX = 50  # waiting requests whose reason is worked out in a listing; `why` answers for any


def devices(agent: NodeAgent) -> list[dict[str, Any]]:
    """Every device with its reading and its division."""
    records = agent.book.records()
    found = []
    for state in agent.devices():
        device = state.device
        reading = agent.inventory.reading(device.uuid)
        mode = SHARING_MODES.get(state.mode) if state.mode else None
        division = mode.division(device, state.held) if mode else None
        found.append(
            {
                "uuid": device.uuid,
                "index": device.index,
                "vendor": device.vendor,
                "model": device.model,
                "memory_mib": device.memory_mib,
                "memory_used_mib": reading.memory_used_mib if reading else 0,
                "memory_allocated_mib": division.memory_mib if division else 0,
                "memory_free_mib": division.memory_free_mib if division else device.memory_mib,
                "core_allocated_percent": division.core_percent if division else 0,
                "utilization_percent": reading.utilization_percent if reading else 0,
                "temperature_c": reading.temperature_c if reading else 0,
                "power_w": reading.power_w if reading else 0.0,
                "health": device.health,
                "cause": agent.inventory.cause(device.uuid),
                "mode": state.mode or "",
                "allocations": [
                    r.id for r in records if any(part.device == device.uuid for part in r.placement.slices)
                ],
            }
        )
    return found


def allocations(pool: Pool, *, ended: bool) -> list[dict[str, Any]]:
    """What is held and what waits; with ``ended`` also what was."""
    agent = pool.agent
    index = {d.uuid: d.index for d in agent.inventory.devices()}
    programs = agent.processes()
    held = agent.book.records()
    shown = [_held(agent, record, programs.get(record.id, []), index) for record in held]
    for number, pending in enumerate(pool.pending()):
        if number >= EXPLAINED_MAX:
            shown.append(_waiting(pending, {"reason": "", "explanation": ""}))
            continue
        with contextlib.suppress(CalabashError):  # answered in the meantime
            shown.append(_waiting(pending, pool.why(pending.id)))
    if ended:
        known = {record.id for record in held}
        over = [r for r in pool.store.allocations(ended=True, limit=1000) if r.id not in known]
        shown = [_allocation(r, [], index, [SliceUse() for _ in r.placement.slices]) for r in over] + shown
    return shown


def granted(answer: Granted, simulation: dict[str, str], membership: str) -> dict[str, Any]:
    """The answer to a request: what its program needs."""
    record = answer.record
    lease = record.slot + "/lease" if membership == "lease" else ""
    return {
        "id": record.id,
        "environment": dict(answer.edits.environment) | simulation,
        "slot": record.slot,
        "lease": lease,
        "mode": record.placement.mode,
        "slices": [
            {"device": part.device, "memory_mib": part.memory_mib, "core_percent": part.core_percent}
            for part in record.placement.slices
        ],
    }


def _held(agent: NodeAgent, record: AllocationRecord, programs: list[Process], index: dict[Any, int]) -> dict[str, Any]:
    shown = _allocation(record, [p.pid for p in programs], index, agent.ledgers.use(record))
    if agent.book.ending(record.id):
        shown |= {"reason": "ending", "explanation": "its programs are being ended"}
    for part in record.placement.slices:
        device = _device(agent, part.device)
        if device is not None and device.health != "healthy" and not shown["reason"]:
            cause = agent.inventory.cause(part.device)
            shown |= {"reason": "unhealthy", "explanation": f"device {device.index} is {device.health}: {cause}"}
    return shown


def _device(agent: NodeAgent, uuid: str) -> Device | None:
    return next((d for d in agent.inventory.devices() if d.uuid == uuid), None)


def _allocation(
    record: AllocationRecord, pids: list[int], index: dict[Any, int], use: list[SliceUse]
) -> dict[str, Any]:
    request = record.request
    return {
        "id": record.id,
        "tenant": request.tenant,
        "queue": request.queue,
        "user": record.user,
        "uid": record.uid,
        "command": list(record.command),
        "mode": record.placement.mode,
        "policy": request.policy,
        "priority": request.priority,
        "gang": request.gang,
        "state": record.state,
        "reason": record.reason,
        "explanation": record.explanation,
        "created_at": record.created_at,
        "started_at": record.started_at or None,
        "ended_at": record.ended_at or None,
        "pids": pids,
        "slices": [
            {
                "device": part.device,
                "device_index": index.get(part.device, -1),
                "memory_mib": part.memory_mib,
                "core_percent": part.core_percent,
                "memory_used_mib": used.memory_used_mib,
                "core_used_percent": used.core_used_percent,
                "denied": used.denied,
                "throttled_s": used.throttled_s,
            }
            for part, used in zip(record.placement.slices, use, strict=True)
        ],
    }


def _waiting(pending: Pending, why: dict[str, Any]) -> dict[str, Any]:
    request = pending.request
    return {
        "id": pending.id,
        "tenant": request.tenant,
        "queue": request.queue,
        "user": user_name(pending.peer.uid),
        "uid": pending.peer.uid,
        "command": list(pending.command),
        "mode": request.mode,
        "policy": request.policy,
        "priority": request.priority,
        "gang": request.gang,
        "state": "pending",
        "reason": why["reason"],
        "explanation": why["explanation"],
        "created_at": pending.created_at,
        "started_at": None,
        "ended_at": None,
        "pids": [pending.peer.pid] if pending.peer.pid else [],
        "slices": [],
    }
