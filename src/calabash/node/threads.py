"""What the agent's threads do, round after round (``docs/concepts/threads.md``).

``watch`` never asks a driver, so that no card can hold up that what has ended is given back. ``look`` and ``events``
ask drivers, and hold no lock meanwhile.
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
from calabash.node.administration.devices import Care
from calabash.node.allocations.table import Changes
from calabash.node.arbiter.supervisor import ArbiterProcess
from calabash.node.audit.loop import ROUND_S
from calabash.node.loops import Loops
from calabash.node.membership.terminator import Terminator
from calabash.node.modes.protocol import HostingExecutor
from calabash.node.wiring import NodeParts

SWEEP_PERIOD_S = 0.1
LOOK_PERIOD_S = 0.2
READ_PERIOD_S = 0.8  # with the longest time for an answer, a silent card is found out within two seconds
ROUNDS_PERIOD_S = 1.0
RECOVERY_PERIOD_S = 0.2
REST_PERIOD_S = 1.0  # of rounds that have nothing to do
EMPTY_PERIOD_S = 0.5  # of ``watch`` while nothing is held: events wait for the journal so long at most
PORTS_PERIOD_S = 1.0
EVENT_WAIT_S = 1.0

log = structlog.get_logger(__name__)


class Watching:
    """The rounds of one node."""

    def __init__(self, parts: NodeParts, home: Path) -> None:
        self._parts = parts
        self._changed = parts.events.changed
        self._terminator = Terminator(parts.membership)
        self._arbiter = ArbiterProcess(home)
        self._next_round_ns = 0
        self._is_empty = False  # nobody had a slice at the last look
        self.care = Care(parts)
        self._loops = Loops(parts.clock, complain=parts.events.complain)
        parts.occupancy.asked = lambda: self._loops.wake("look")
        parts.network.on_leave(lambda: self._loops.wake("ports"))
        self._loops.add("watch", self._watch, every_s=SWEEP_PERIOD_S)
        self._loops.add("look", self._look, every_s=LOOK_PERIOD_S)
        self._loops.add("truth", parts.truth.round, every_s=ROUND_S)
        self._loops.add("health", self._observe, every_s=READ_PERIOD_S)
        self._loops.add("recovery", self._recover, every_s=RECOVERY_PERIOD_S)
        parts.tidings.subscribe(lambda: self._loops.wake("recovery"))
        self._loops.add("ports", self._keep_ports, every_s=PORTS_PERIOD_S)
        for driver in parts.inventory.drivers:
            self._loops.add("events", _waiting_for(driver, parts), every_s=0.0)

    def start(self) -> None:
        self._arbiter.start()
        self._loops.start()

    def wake(self) -> None:
        """Settle soon."""
        self._loops.wake("watch")

    def granted(self) -> None:
        """Somebody has a slice now: go on with the rounds that rest while nobody has."""
        if self._is_empty:
            self._is_empty = False
            self._loops.wake("look")
            self._loops.wake("watch")

    def stop(self) -> None:
        self._loops.stop()
        self._parts.truth.close()
        self._arbiter.stop()

    @property
    def arbiter_pid(self) -> int:
        """0 when it is just being started again."""
        return self._arbiter.pid

    def record(self, changes: Changes) -> None:
        """Tell what has changed, and let modes undo what they did. Under the lock."""
        events = self._parts.events
        for record in changes.started:
            events.tell("started", allocation=record.id)
        for record in changes.released:
            executor = self._parts.modes.get(record.placement.mode)
            if executor is not None:
                executor.leave(record)
            self._parts.network.leave(record)
            events.tell("released", reason=record.reason, allocation=record.id, message=record.explanation)
        for failure in changes.failures:
            events.complain(failure)
        if not changes.failures:
            events.settled()

    def _watch(self) -> float | None:
        """Settle allocations; less often while there are none. A grant or an end wakes it up."""
        self._settle()
        return None if self._parts.allocations.records() else EMPTY_PERIOD_S

    def _settle(self) -> None:
        parts = self._parts
        parts.truth.relieve()
        for executor in parts.modes.values():
            if isinstance(executor, HostingExecutor):
                executor.tend()
        began = parts.ledgers.meters.now()
        parts.ledgers.meters.settled(parts.lives)
        self._sweep()
        parts.last_round.write(began)
        if parts.ledgers.is_due:
            records = parts.allocations.records()
            # What is just being made has no slot yet; it could get one between a look that fails and the judgement of it.
            made = [record for record in records if not parts.allocations.making(record.id)]
            for allocation, how in parts.ledgers.tick(made).items():
                self._end_spoilt(allocation, how)
            parts.ledgers.checkpoint(records, parts.store)
        parts.events.flush()

    def _sweep(self) -> None:
        """Settle all allocations now."""
        with self._parts.lock:
            changes = self._parts.allocations.sweep()
            self.record(changes)
            self._terminator.end([r.id for r in changes.to_end], self._parts.clock.monotonic_ns())
        if changes.released:
            self._changed()

    def _end_spoilt(self, allocation: AllocationId, how: str) -> None:
        """Who cuts or stretches its page wants to harm somebody: it is not asked politely."""
        with self._parts.lock:
            if not self._parts.allocations.ending(allocation):
                self._parts.events.tell("hostile", reason=Reason.BAD_FILE, allocation=allocation, message=how)
                self._parts.allocations.end(allocation, reason="hostile", explanation=how)
        self._parts.membership.kill(allocation)

    def _keep_ports(self) -> None:
        self._parts.network.round(self._parts.allocations.records())

    def _look(self) -> float | None:
        """Look at the cards; seldom while nobody has a slice, and nobody has asked for a look."""
        self._look_at_cards()
        self._is_empty = not self._parts.allocations.records()
        return REST_PERIOD_S if self._is_empty else None

    def _look_at_cards(self) -> None:
        parts = self._parts
        parts.recorded_ends.tend()
        if parts.occupancy.look():
            self._loops.wake("watch")
        for executor in parts.modes.values():
            executor.look()
        now_ns = parts.clock.monotonic_ns()
        if now_ns < self._next_round_ns:
            return
        self._next_round_ns = now_ns + int(ROUNDS_PERIOD_S * 1e9)
        records = parts.allocations.records()
        parts.ledgers.sample(records, parts.inventory)
        for name, executor in parts.modes.items():
            for mended in executor.verify([r for r in records if r.placement.mode == name]):
                parts.events.tell("mended", message=mended)
        self._changed()

    def _recover(self) -> float | None:
        """Take the recovery steps that are due; seldom while all cards are healthy. A change of their health wakes it up."""
        self.care.round()
        return REST_PERIOD_S if self.care.is_resting else None

    def _observe(self) -> float:
        """Read all cards; when to do so again."""
        begun_ns = self._parts.clock.monotonic_ns()
        self._parts.tidings.tell(self._parts.inventory.observe(idle=self._idle))
        return max(0.0, READ_PERIOD_S - (self._parts.clock.monotonic_ns() - begun_ns) / 1e9)

    def _idle(self, device: DeviceUuid) -> bool:
        with self._parts.lock:
            held = any(p.device == device for r in self._parts.allocations.records() for p in r.placement.slices)
            return not held and not self._parts.allocations.orphaned(device)


def _waiting_for(driver: GpuDriver, parts: NodeParts) -> Callable[[], float | None]:
    """One round of waiting for what a driver reports by itself. The first one only begins to listen, and asks for what was
    reported before: nothing falls in between."""
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
        parts.tidings.tell(parts.inventory.health.missed(past))
        for event in events:
            parts.tidings.tell(parts.inventory.health.reported(event))
        return None

    return wait
