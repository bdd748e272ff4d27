"""What drivers see, against what tenants say: one round of the auditor and of the census, and what follows for people
and for allocations. Asks drivers, and holds no lock meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from calabash.adapters.clock import Clock
from calabash.model.device import DeviceUuid
from calabash.model.errors import Reason
from calabash.model.request import AllocationId
from calabash.model.units import MIB
from calabash.node.audit.auditor import Auditor
from calabash.node.audit.process_census import PERIOD_NS, Caps, Census, CensusListener, Views, described
from calabash.node.devices.inventory import Inventory
from calabash.node.membership.protocol import Membership
from calabash.node.processes.inherited import OwnProcesses
from calabash.node.processes.reaper import Keeping
from calabash.node.processes.unmanaged import OverUse, Stranger, StrangerPolicy

PATIENCE_NS = 300_000_000  # a driver that takes longer may wait for somebody who was stopped
ROUND_S = 0.1
REST_S = 0.2  # nobody who has a slice did anything of late
EMPTY_S = PERIOD_NS / 1e9  # nobody has a slice, and only strangers are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a round may do to the rest of the agent.

    Args:
        keepings: the pages of all allocations that are limited.
        views: those of all allocations: what devices, and parts of devices, each may see.
        entitled: the allocations that may be on a device.
        tell: an event: kind, reason, allocation, device, message.
        end: ends an allocation: id, reason, explanation.
        changed: what can be granted has changed.
    """

    keepings: Callable[[], Sequence[Keeping]]
    views: Callable[[], Sequence[Keeping]]
    entitled: Callable[[DeviceUuid], Collection[AllocationId]]
    tell: Callable[[str, str, str, str, str], None]
    end: Callable[[AllocationId, str, str], None]
    changed: Callable[[], None]


class Truth:
    """Rounds of one node. ``round`` from one thread, ``strangers`` from any."""

    def __init__(
        self,
        inventory: Inventory,
        membership: Membership,
        clock: Clock,
        hooks: Hooks,
        *,
        policy: StrangerPolicy,
        own: OwnProcesses | None = None,
    ) -> None:
        self._inventory = inventory
        self._membership = membership
        self._clock = clock
        self._hooks = hooks
        self._next_ns = 0
        self._asking_since_ns = 0  # 0: no driver is being asked
        self._proven = membership.form == "kernel"  # else a process can leave its allocation, or be lent to another
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
            tell=self._under_reported,
        )

    @property
    def policy(self) -> StrangerPolicy:
        """What happens to strangers."""
        return self._census.policy

    def strangers(self, device: DeviceUuid) -> tuple[Stranger, ...]:
        """Those that are on a device."""
        return self._census.strangers(device)

    def round(self) -> float | None:
        """What is due now; in how many seconds something is due again, None: after the usual time."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_ns:
            return self._until_next(self._auditor.step(now_ns), now_ns)
        self._next_ns = now_ns + int(ROUND_S * 1e9)
        keepings = self._hooks.keepings()
        self._asking_since_ns = now_ns
        try:
            self._auditor.tick(keepings, now_ns)
            self._census.tick(lambda: _caps(keepings), now_ns, views=lambda: _views(self._hooks.views()))
        finally:
            self._asking_since_ns = 0
        now_ns = self._clock.monotonic_ns()
        return self._until_next(self._auditor.step(now_ns), now_ns)

    def relieve(self) -> None:
        """From a thread that asks no driver: while a driver does not answer, whoever is stopped goes on. It may hold what
        the driver waits for."""
        since_ns = self._asking_since_ns
        if since_ns and self._clock.monotonic_ns() - since_ns > PATIENCE_NS:
            self._auditor.relieve()

    def _until_next(self, paced_s: float | None, now_ns: int) -> float | None:
        if paced_s is None:
            if self._auditor.is_watching:
                return None
            return REST_S if self._hooks.keepings() else EMPTY_S
        return min(paced_s, max(0.0, (self._next_ns - now_ns) / 1e9))

    def close(self) -> None:
        """Let everybody go on who was stopped: nobody is there to continue them later."""
        self._auditor.release()

    def _index(self, uuid: DeviceUuid) -> int:
        return next((d.index for d in self._inventory.devices() if d.uuid == uuid), -1)

    def _found(self, stranger: Stranger) -> None:
        message = f"{described(stranger)} of device {self._index(stranger.device)} and has no slice of it"
        self._hooks.tell("stranger", Reason.STRANGER, stranger.allocation or "", stranger.device, message)

    def _gone(self, stranger: Stranger) -> None:
        message = f"pid {stranger.process.pid} has left device {self._index(stranger.device)}"
        self._hooks.tell("stranger_gone", Reason.STRANGER, stranger.allocation or "", stranger.device, message)

    def _over_use(self, use: OverUse) -> None:
        message = (
            f"its {use.processes} processes hold {use.used_mib} MiB of device {self._index(use.device)},"
            f" it was given {use.cap_mib} MiB"
        )
        self._hooks.tell("over_use", Reason.OVER_USE, use.allocation, use.device, message)
        if self._proven:
            self._hooks.end(use.allocation, Reason.OVER_USE, message)

    def _under_reported(self, allocation: AllocationId, uuid: DeviceUuid, owed_ns: int) -> None:
        message = (
            f"the driver saw {owed_ns // 1_000_000} ms of GPU time on device {self._index(uuid)}"
            " that its usage page does not tell; they are charged"
        )
        self._hooks.tell("under_reported", Reason.UNDER_REPORTED, allocation, uuid, message)


def _views(keepings: Sequence[Keeping]) -> Views:
    return {keeping.limits.allocation: keeping.limits.uuids for keeping in keepings}


def _caps(keepings: Sequence[Keeping]) -> Caps:
    return {
        (keeping.limits.allocation, uuid): keeping.limits.cap_bytes(index) // MIB
        for keeping in keepings
        for index, uuid in enumerate(keeping.limits.uuids)
        if keeping.limits.device(index).memory_limit_bytes
    }
