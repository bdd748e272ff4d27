"""Explain requests to users: why a request waits, where it was placed, or why its allocation has ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from calabash.adapters.store import Store
from calabash.binder.local.binder import Binder
from calabash.binder.local.requests import WaitingRequest
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Health
from calabash.model.errors import CalabashError
from calabash.model.messages import Message, Text
from calabash.model.request import AllocationId, Slice
from calabash.node.agent import NodeAgent
from calabash.node.snapshot import DeviceSnapshot
from calabash.platform.access.permission import not_found
from calabash.pool.requests.refusals import Refusal, refusal

HAPPENINGS_SHOWN = 5
ENDED_BY_S = 2.0  # a fault may be detected after it has ended a program


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExplanation:
    """Explanation of a waiting request, or of a present or ended allocation.

    Args:
        reason: code of the reason; "" for an allocation that runs.
        text: one line with the numbers.
        details: further lines, for example one per device.
        suggestions: changes with which a waiting request might be placed.
    """

    id: AllocationId
    state: str
    reason: str
    text: Text
    details: tuple[Text, ...] = ()
    suggestions: tuple[Text, ...] = ()


class Explanations:
    """Explanations of requests and allocations, from binder, agent and journal."""

    def __init__(self, *, binder: Binder, agent: NodeAgent, store: Store) -> None:
        self._binder = binder
        self._agent = agent
        self._store = store

    def refusal(self, waiting: WaitingRequest, devices: Sequence[DeviceSnapshot] | None = None) -> Refusal:
        """Return the reason for which a request waits. Raises CalabashError if it does not wait.

        Args:
            devices: states of the devices; None: the present ones.
        """
        told = self._binder.explain_wait(waiting)
        return refusal(told, self._agent.devices() if devices is None else devices, waiting.request)

    def explain(self, allocation: AllocationId, devices: Sequence[DeviceSnapshot] | None = None) -> RequestExplanation:
        """Return the explanation of a waiting request, or of a present or ended allocation. Raises NOT_FOUND.

        Args:
            devices: states of the devices; None: the present ones.
        """
        waiting = self._binder.find(allocation)
        if waiting is not None:
            try:
                told = self.refusal(waiting, devices)
            except CalabashError:  # granted in the meantime
                pass
            else:
                return RequestExplanation(
                    id=allocation,
                    state="pending",
                    reason=told.reason,
                    text=told.message,
                    details=told.details,
                    suggestions=told.suggestions,
                )
        record = self._agent.record(allocation) or self._store.allocation(allocation)
        if record is None:
            raise not_found(allocation)
        placed = [
            f"{part.device}: {_memory(part)}, {part.core_percent}% in mode {record.placement.mode}"
            for part in record.placement.slices
        ]
        unhealthy, happened = self._of_devices(record)
        return RequestExplanation(
            id=allocation,
            state=record.state,
            reason=record.reason or ("unhealthy" if unhealthy else ""),
            text=unhealthy or record.explanation or f"{record.state} in mode {record.placement.mode}",
            details=(
                *([record.explanation] if unhealthy and record.explanation else []),
                *placed,
                *happened,
                *self._agent.notes(record),
            ),
        )

    def _of_devices(self, record: AllocationRecord) -> tuple[Text, list[Text]]:
        """Return a text about an unhealthy device of an allocation, and the health events of its devices.

        The text is "" if the allocation has ended or all its devices are healthy. The events are those between the creation
        of the allocation and its end.
        """
        wanted = {part.device for part in record.placement.slices}
        until = record.ended_at + ENDED_BY_S if record.ended_at else float("inf")
        unhealthy: Text = ""
        told: list[Text] = []
        for state in self._agent.devices():
            device = state.device
            if device.uuid not in wanted:
                continue
            if device.health is not Health.HEALTHY and not record.ended_at:
                unhealthy = unhealthy or unhealthy_device(state)
            since = [h for h in self._agent.administration.entry(device).history if record.created_at <= h.at <= until]
            told += [
                Message(
                    "{time} device {device} {health}: {cause}",
                    time=time.strftime("%H:%M:%S", time.localtime(h.at)),
                    device=device.index,
                    health=h.health,
                    cause=h.cause_text,
                )
                for h in since[-HAPPENINGS_SHOWN:]
            ]
        return unhealthy, told


def unhealthy_device(state: DeviceSnapshot) -> Message:
    """Return the message about a device that is not healthy."""
    device = state.device
    return Message("device {device} is {health}: {cause}", device=device.index, health=device.health, cause=state.cause)


def _memory(part: Slice) -> str:
    """Return a text with the memory limit of a slice; if it may spill, also the memory guaranteed on the device."""
    promised = f", {part.resident_mib} MiB of them promised on the card" if part.spill_mib else ""
    return f"{part.memory_mib or 'all'} MiB{promised}"
