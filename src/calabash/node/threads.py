"""Periodic threads of the node agent; ``docs/concepts/threads.md`` lists them.

Thread ``watch`` calls no driver, so a device that does not answer never delays the release of ended allocations. Other
threads call drivers, and hold no lock while they do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from calabash.adapters.gpu.past_faults import past_faults
from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.administration.devices import DeviceAdministration
from calabash.node.allocations.table import Changes
from calabash.node.arbiter.supervisor import ArbiterProcess
from calabash.node.audit.loop import ROUND_S
from calabash.node.membership.terminator import Terminator
from calabash.node.modes.protocol import HostingExecutor
from calabash.node.wiring import NodeParts

SWEEP_PERIOD_S = 0.1
DEVICES_PERIOD_S = 0.2
READ_PERIOD_S = 0.8  # plus the longest wait for an answer: a card that does not answer is detected within 2 s
ROUNDS_PERIOD_S = 1.0
RECOVERY_PERIOD_S = 0.2
REST_PERIOD_S = 1.0  # pause of threads that have nothing to do
EMPTY_PERIOD_S = 0.5  # pause of `watch` while nothing is held; the longest delay of events
PORTS_PERIOD_S = 1.0
EVENT_WAIT_S = 1.0

log = structlog.get_logger(__name__)


class AgentThreads:
    """Periodic threads of one node agent."""

    def __init__(self, parts: NodeParts, home: Path) -> None:
        self._parts = parts
        self._changed = parts.events.changed
        self._terminator = Terminator(parts.membership)
        self._arbiter = ArbiterProcess(home)
        self._next_round_ns = 0
        self._is_empty = False  # no allocation was held at the last poll
        self.administration = DeviceAdministration(parts)
        self._loops = parts.loops
        parts.network.on_leave(lambda: self._loops.wake("ports"))
        self._loops.add("watch", self._watch, every_s=SWEEP_PERIOD_S)
        self._loops.add("devices", self._poll_devices, every_s=DEVICES_PERIOD_S)
        self._loops.add("audit", parts.audit.round, every_s=ROUND_S)
        self._loops.add("health", self._observe, every_s=READ_PERIOD_S)
        self._loops.add("recovery", self._recover, every_s=RECOVERY_PERIOD_S)
        parts.health_notifier.subscribe(lambda: self._loops.wake("recovery"))
        self._loops.add("ports", self._reconcile_ports, every_s=PORTS_PERIOD_S)
        for driver in parts.inventory.drivers:
            self._loops.add("events", _waiting_for(driver, parts), every_s=0.0)

    def start(self) -> None:
        self._arbiter.start()
        self._loops.start()

    def wake(self) -> None:
        """Run ``watch`` at once."""
        self._loops.wake("watch")

    def granted(self) -> None:
        """Wake the threads that run less often while no allocation is held."""
        if self._is_empty:
            self._is_empty = False
            self._loops.wake("devices")
            self._loops.wake("watch")

    def stop(self) -> None:
        self._loops.stop()
        self._parts.audit.close()
        self._arbiter.stop()

    @property
    def arbiter_pid(self) -> int:
        """Pid of the arbiter process; 0 while it is being restarted."""
        return self._arbiter.pid

    def record(self, changes: Changes) -> None:
        """Emit events for the changes of a sweep, and release the mode's resources and ports of released allocations.

        Called under the agent's lock.
        """
        events = self._parts.events
        for record in changes.started:
            events.emit("started", allocation=record.id)
        for record in changes.released:
            executor = self._parts.modes.get(record.placement.mode)
            if executor is not None:
                executor.leave(record)
            self._parts.network.leave(record)
            events.emit("released", reason=record.reason, allocation=record.id, message=record.explanation)
        for failure in changes.failures:
            events.complain(failure)
        if not changes.failures:
            events.settled()

    def _watch(self) -> float | None:
        """Take the due steps for allocations; return a longer pause while none is held.

        The pause ends at once when an allocation is granted or its end is requested.
        """
        self._settle()
        return None if self._parts.allocations.records() else EMPTY_PERIOD_S

    def _settle(self) -> None:
        parts = self._parts
        parts.audit.thaw_for_driver()
        for executor in parts.modes.values():
            if isinstance(executor, HostingExecutor):
                executor.poll_processes()
        began = parts.usage_tracker.meters.now()
        parts.usage_tracker.meters.note_living(parts.lives)
        self._sweep()
        parts.last_round.write(began)
        if parts.usage_tracker.is_due:
            records = parts.allocations.records()
            # An allocation that is being created has no slot yet. It could get one after its page was found missing.
            made = [record for record in records if not parts.allocations.making(record.id)]
            for allocation, how in parts.usage_tracker.tick(made).items():
                self._end_spoilt(allocation, how)
            parts.usage_tracker.checkpoint(records, parts.store)
        parts.events.flush()

    def _sweep(self) -> None:
        """Take all due steps in the life cycle of allocations."""
        with self._parts.lock:
            changes = self._parts.allocations.sweep()
            self.record(changes)
            self._terminator.end([r.id for r in changes.to_end], self._parts.clock.monotonic_ns())
        if changes.released:
            self._changed()

    def _end_spoilt(self, allocation: AllocationId, how: str) -> None:
        """End an allocation whose tenant has resized its usage page, with SIGKILL and without a grace period.

        Without an intact page its limits cannot be enforced. ``how`` describes the change.
        """
        with self._parts.lock:
            if not self._parts.allocations.ending(allocation):
                self._parts.events.emit("hostile", reason=Reason.BAD_FILE, allocation=allocation, message=how)
                self._parts.allocations.end(allocation, reason="hostile", explanation=how)
        self._parts.membership.kill(allocation)

    def _reconcile_ports(self) -> None:
        self._parts.network.round(self._parts.allocations.records())

    def _poll_devices(self) -> float | None:
        """Run the periodic work that calls drivers; return a longer pause while no allocation is held."""
        self._poll_modes_and_usage()
        self._is_empty = not self._parts.allocations.records()
        return REST_PERIOD_S if self._is_empty else None

    def _poll_modes_and_usage(self) -> None:
        parts = self._parts
        parts.recorded_ends.ensure_running()
        if parts.occupancy.poll():
            self._loops.wake("watch")
        for executor in parts.modes.values():
            executor.poll()
        now_ns = parts.clock.monotonic_ns()
        if now_ns < self._next_round_ns:
            return
        self._next_round_ns = now_ns + int(ROUNDS_PERIOD_S * 1e9)
        records = parts.allocations.records()
        parts.usage_tracker.sample(records, parts.inventory)
        for name, executor in parts.modes.items():
            for mended in executor.verify([r for r in records if r.placement.mode == name]):
                parts.events.emit("mended", message=mended)
        self._changed()

    def _recover(self) -> float | None:
        """Take the recovery steps that are due; return a longer pause while all cards are healthy."""
        self.administration.round()
        return REST_PERIOD_S if self.administration.is_resting else None

    def _observe(self) -> float:
        """Read all cards; return the seconds until the next reading."""
        begun_ns = self._parts.clock.monotonic_ns()
        self._parts.health_notifier.notify(self._parts.inventory.observe(idle=self._idle))
        return max(0.0, READ_PERIOD_S - (self._parts.clock.monotonic_ns() - begun_ns) / 1e9)

    def _idle(self, device: DeviceUuid) -> bool:
        with self._parts.lock:
            held = any(p.device == device for r in self._parts.allocations.records() for p in r.placement.slices)
            return not held and not self._parts.allocations.orphaned(device)


def _waiting_for(driver: GpuDriver, parts: NodeParts) -> Callable[[], float | None]:
    """Return the loop body that waits for events of one driver.

    The first call starts to listen for events and then reads the faults that the driver has recorded before. In this
    order no fault is lost in between.
    """
    listening = False

    def wait() -> float | None:
        nonlocal listening
        try:
            events = driver.wait_events(EVENT_WAIT_S if listening else 0.0)
            past = () if listening else past_faults(driver)
        except CalabashError as error:
            log.debug("no events from the driver", vendor=driver.vendor, error=error.message)
            return EVENT_WAIT_S
        listening = True
        parts.health_notifier.notify(parts.inventory.health.missed(past))
        for event in events:
            parts.health_notifier.notify(parts.inventory.health.reported(event))
        return None

    return wait
