"""Grant an allocation on a node: journal it, create the resources of its sharing mode, then create its slot.

Slow steps run without the agent's lock; the capacity is reserved by the journalled allocation meanwhile. If a step
fails, the earlier steps are undone and nothing is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text
from calabash.model.request import AllocationId
from calabash.node import snapshot_reader
from calabash.node.allocations.capacity_check import require_room, require_served
from calabash.node.allocations.table import Changes
from calabash.node.modes.protocol import HostingExecutor, ModeExecutor
from calabash.node.modes.registry import GrantMode, grant_mode
from calabash.node.ports.protocol import require_free
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.wiring import NodeParts
from calabash.sharing.protocol import Edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Result of a grant.

    Args:
        record: the journalled allocation.
        edits: changes of the environment in which its programs run: variables, mounts and device files.
        warnings: texts for its user, one line each.
        devices: the devices of its slices, as far as they are known.
    """

    record: AllocationRecord
    edits: Edits
    warnings: tuple[Text, ...] = ()
    devices: tuple[Device, ...] = ()


class Granting:
    """Grants of one node. Methods may be called from any thread.

    Args:
        library: path of the shim library.
        settled: called under the lock with the changes of a sweep.
    """

    def __init__(self, parts: NodeParts, library: Path, *, settled: Callable[[Changes], None]) -> None:
        self._parts = parts
        self._library = library
        self._settled = settled

    def grant(self, record: AllocationRecord, *, instead_of: Collection[AllocationId] = ()) -> Grant:
        """Implement ``NodeAgent.grant``."""
        mode = grant_mode(record, self._parts.modes)
        executor = mode.executor
        require_served(record, membership=self._parts.membership.form, own_uid=os.geteuid())
        _require_may_stand(record, executor)
        executor.prepare(record)
        self._parts.network.require(record.request)
        with self._parts.lock:
            known = self._parts.allocations.get(record.id)
            if known is not None:
                return self._again(known, record, mode)
            require_room(record, mode.rules, snapshot_reader.devices(self._parts), but=instead_of)
            require_free(record.request.ports, self._parts.allocations.records())
            held = self._parts.allocations.hold(record)
        devices = self._provided(held, executor)
        spec = SlotSpec(
            allocation=record.id,
            devices=devices,
            tenant_uid=user if (user := _slot_user(held, executor)) >= 0 and os.geteuid() == 0 else None,
            leaseless=self._parts.membership.form == "kernel",
        )
        with self._parts.lock:
            granted = self._granted(held, spec, executor)
        granted = self._launched(granted, executor)
        with self._parts.lock:
            edits = self._edits(granted, mode)
        self._parts.events.emit(
            "granted", allocation=record.id, message=_described(granted, self._parts.inventory.devices())
        )
        return Grant(
            record=granted, edits=edits, warnings=executor.warnings(granted), devices=self._devices_of(granted)
        )

    def _provided(self, held: AllocationRecord, executor: ModeExecutor) -> tuple[SlotDevice, ...]:
        """Create the resources of the mode, without the lock, so that other allocations can be granted meanwhile."""
        try:
            for other in self._parts.modes.values():
                if other is not executor:
                    other.vacate(held)
            devices = executor.provide(held)
            self._parts.network.attach(held)
            return devices
        except BaseException as error:
            with self._parts.lock:
                self._undone(held, executor)
                self._parts.allocations.give_up(held.id, error)
            raise

    def _granted(self, held: AllocationRecord, spec: SlotSpec, executor: ModeExecutor) -> AllocationRecord:
        allocations = self._parts.allocations
        try:
            granted = allocations.grant(spec)
        except BaseException:
            self._undone(held, executor)
            raise
        self._parts.usage_tracker.meters.begin(granted)
        try:
            executor.enter(granted, self._parts.slots.pages(held.id))
        except CalabashError as error:
            self._undone(granted, executor)
            allocations.end(held.id, reason=error.reason, explanation=error.message_text)
            self._settled(allocations.sweep())
            raise
        return (allocations.started(held.id, None) or granted) if held.request.standing else granted

    def _launched(self, granted: AllocationRecord, executor: ModeExecutor) -> AllocationRecord:
        """Start the worker of an allocation if its mode serves programs through workers; return the record.

        Called without the lock, because starting a process takes milliseconds.
        """
        if not isinstance(executor, HostingExecutor):
            return granted
        try:
            executor.launch(granted)
        except CalabashError as error:
            with self._parts.lock:
                self._undone(granted, executor)
                self._parts.allocations.end(granted.id, reason=error.reason, explanation=error.message_text)
                self._settled(self._parts.allocations.sweep())
            raise
        return self._parts.allocations.get(granted.id) or granted

    def _undone(self, record: AllocationRecord, executor: ModeExecutor) -> None:
        """Remove the resources that the mode has created for an allocation, and its network ports."""
        executor.leave(record)
        self._parts.network.leave(record)

    def _again(self, known: AllocationRecord, wanted: AllocationRecord, mode: GrantMode) -> Grant:
        if self._parts.allocations.making(known.id):
            raise CalabashError(
                f"allocation {known.id} is being created",
                reason=Reason.CONFLICT,
                hint="retry in a second",
            )
        if self._parts.allocations.ending(known.id) or known.placement != wanted.placement:
            raise CalabashError(
                f"allocation {known.id} is still held with another placement, or is just ending",
                reason=Reason.CONFLICT,
                hint="retried automatically when its last process has ended",
            )
        return Grant(record=known, edits=self._edits(known, mode), devices=self._devices_of(known))

    def _devices_of(self, record: AllocationRecord) -> tuple[Device, ...]:
        uuids = {part.device for part in record.placement.slices}
        return tuple(device for device in self._parts.inventory.devices() if device.uuid in uuids)

    def _edits(self, record: AllocationRecord, mode: GrantMode) -> Edits:
        slot = str(self._parts.slots.path(record.id))
        everywhere = mode.rules.best.container_edits(record.placement.slices, library=str(self._library), slot=slot)
        return everywhere.joined(mode.executor.edits(record))


def _slot_user(record: AllocationRecord, executor: ModeExecutor) -> int:
    """Return the UID that may write into the slot: the tenant's, or that of the worker that runs in its place."""
    return executor.slot_user(record) if isinstance(executor, HostingExecutor) else record.uid


def _require_may_stand(record: AllocationRecord, executor: ModeExecutor) -> None:
    if record.request.standing and not executor.standing:
        raise CalabashError(
            f"an allocation in mode {executor.name} ends with its programs and cannot be standing",
            hint="leave `standing` out",
        )


def _described(record: AllocationRecord, devices: Sequence[Device]) -> str:
    """Return a text such as ``vgpu: 8192 MiB 30% of device 0``."""
    index = {d.uuid: d.index for d in devices}
    parts = [f"{p.memory_mib} MiB {p.core_percent}% of device {index.get(p.device)}" for p in record.placement.slices]
    return f"{record.placement.mode}: {', '.join(parts)}"
