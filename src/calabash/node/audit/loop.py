"""Periodic rounds of the auditor and of the process census, which emit events and may end allocations.

The rounds call drivers and hold no lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from calabash.adapters.clock import Clock
from calabash.model.device import DeviceUuid
from calabash.model.errors import Reason
from calabash.model.messages import Message, Text
from calabash.model.request import AllocationId
from calabash.model.units import MIB
from calabash.node.audit.auditor import Auditor
from calabash.node.audit.process_census import PERIOD_NS, Caps, Census, CensusListener, Views, describe_process
from calabash.node.devices.inventory import Inventory
from calabash.node.membership.protocol import Membership
from calabash.node.processes.inherited import PoolProcesses
from calabash.node.processes.reaper import OpenSlot
from calabash.node.processes.unmanaged import OverUse, UnmanagedPolicy, UnmanagedProcess

PATIENCE_NS = 300_000_000  # a driver that takes longer may wait for a stopped process
ROUND_S = 0.1
REST_S = 0.2  # no allocation has worked recently
EMPTY_S = PERIOD_NS / 1e9  # no slot is open: only unmanaged processes are searched for


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHooks:
    """Access of a round to other components of the agent.

    Args:
        capped_slots: returns the open slots of all allocations with a memory limit.
        open_slots: returns the open slots of all allocations, which list the devices and partitions that each may use.
        entitled: returns the allocations that may use a device.
        emit: emits an event: kind, reason, allocation, device, message.
        end: ends an allocation: id, reason, explanation.
        changed: called when capacity may have changed.
    """

    capped_slots: Callable[[], Sequence[OpenSlot]]
    open_slots: Callable[[], Sequence[OpenSlot]]
    entitled: Callable[[DeviceUuid], Collection[AllocationId]]
    emit: Callable[[str, str, str, str, Text], None]
    end: Callable[[AllocationId, str, Text], None]
    changed: Callable[[], None]


class NodeAudit:
    """Audit of one node: reported GPU time, unmanaged processes, and memory beyond limits.

    ``round`` is called from one thread, ``unmanaged`` from any.

    Args:
        policy: action on unmanaged processes.
        own: processes of the pool itself, which are not unmanaged.
    """

    def __init__(
        self,
        inventory: Inventory,
        membership: Membership,
        clock: Clock,
        hooks: AuditHooks,
        *,
        policy: UnmanagedPolicy,
        own: PoolProcesses | None = None,
    ) -> None:
        self._inventory = inventory
        self._membership = membership
        self._clock = clock
        self._hooks = hooks
        self._next_ns = 0
        self._asking_since_ns = 0  # 0: no driver is being asked
        self._proven = (
            membership.form == "kernel"
        )  # with leases a process can leave its allocation or enter another one
        self._census = Census(
            inventory,
            membership.allocation_of,
            hooks.entitled,
            CensusListener(found=self._found, gone=self._gone, over_use=self._over_use, changed=hooks.changed),
            policy=policy,
            own=own,
        )
        self._auditor = Auditor(
            inventory,
            membership.allocation_of,
            freeze=membership.freeze if self._proven else None,
            report=self._under_reported,
        )

    @property
    def policy(self) -> UnmanagedPolicy:
        """Action on unmanaged processes."""
        return self._census.policy

    def unmanaged(self, device: DeviceUuid) -> tuple[UnmanagedProcess, ...]:
        """Return the confirmed unmanaged processes of a device."""
        return self._census.unmanaged(device)

    def round(self) -> float | None:
        """Run auditor and census if they are due; return the seconds until the next call, None for the usual period."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_ns:
            return self._until_next(self._auditor.step(now_ns), now_ns)
        self._next_ns = now_ns + int(ROUND_S * 1e9)
        capped_slots = self._hooks.capped_slots()
        self._asking_since_ns = now_ns
        try:
            self._auditor.tick(capped_slots, now_ns)
            self._census.tick(lambda: _caps(capped_slots), now_ns, views=lambda: _views(self._hooks.open_slots()))
        finally:
            self._asking_since_ns = 0
        now_ns = self._clock.monotonic_ns()
        return self._until_next(self._auditor.step(now_ns), now_ns)

    def thaw_for_driver(self) -> None:
        """Continue stopped allocations while a driver does not answer, as the driver may wait for a stopped process.

        Takes effect after PATIENCE_NS. Called from a thread that calls no driver.
        """
        since_ns = self._asking_since_ns
        if since_ns and self._clock.monotonic_ns() - since_ns > PATIENCE_NS:
            self._auditor.thaw_for_driver()

    def _until_next(self, paced_s: float | None, now_ns: int) -> float | None:
        if paced_s is None:
            if self._auditor.is_watching:
                return None
            return REST_S if self._hooks.capped_slots() else EMPTY_S
        return min(paced_s, max(0.0, (self._next_ns - now_ns) / 1e9))

    def close(self) -> None:
        """Continue all stopped allocations, because no process would continue them after the end of the agent."""
        self._auditor.thaw_all()

    def _index(self, uuid: DeviceUuid) -> int:
        return next((d.index for d in self._inventory.devices() if d.uuid == uuid), -1)

    def _found(self, found: UnmanagedProcess) -> None:
        message = Message(
            "{process} of device {device} and has no slice of it",
            process=describe_process(found),
            device=self._index(found.device),
        )
        self._hooks.emit("stranger", Reason.STRANGER, found.allocation or "", found.device, message)

    def _gone(self, found: UnmanagedProcess) -> None:
        message = f"pid {found.process.pid} has left device {self._index(found.device)}"
        self._hooks.emit("stranger_gone", Reason.STRANGER, found.allocation or "", found.device, message)

    def _over_use(self, use: OverUse) -> None:
        message = (
            f"its {use.processes} processes hold {use.used_mib} MiB of device {self._index(use.device)},"
            f" it was given {use.cap_mib} MiB"
        )
        self._hooks.emit("over_use", Reason.OVER_USE, use.allocation, use.device, message)
        if self._proven:
            self._hooks.end(use.allocation, Reason.OVER_USE, message)

    def _under_reported(self, allocation: AllocationId, uuid: DeviceUuid, owed_ns: int) -> None:
        message = (
            f"the driver saw {owed_ns // 1_000_000} ms of GPU time on device {self._index(uuid)}"
            " that its usage page does not report; they are charged"
        )
        self._hooks.emit("under_reported", Reason.UNDER_REPORTED, allocation, uuid, message)


def _views(open_slots: Sequence[OpenSlot]) -> Views:
    return {slot.limits.allocation: slot.limits.uuids for slot in open_slots}


def _caps(open_slots: Sequence[OpenSlot]) -> Caps:
    return {
        (slot.limits.allocation, uuid): slot.limits.cap_bytes(index) // MIB
        for slot in open_slots
        for index, uuid in enumerate(slot.limits.uuids)
        if slot.limits.device(index).memory_limit_bytes
    }
