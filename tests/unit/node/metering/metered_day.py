"""A day of a node in virtual time, with killed programs and pools that die at any step, and the true usage.

Journal, slots, pages, meters and the life cycle of allocations are the real ones; membership is set here, and programs
write to their pages like the library does. ``bench/_operate_metering.py`` prints the result.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from calabash.adapters.store import Store, open_store
from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Placement, Slice
from calabash.node.allocations.table import Allocations
from calabash.node.metering.checkpoint import LastRound
from calabash.node.metering.meters import Meters
from calabash.node.metering.usage_tracker import UsageTracker
from calabash.node.slots import content as slots_content
from calabash.node.slots import pages
from calabash.node.slots.files import FileSlots
from calabash_testing.clock import VirtualClock

DAY_S = 86_400.0
ROUND_S = 0.1
CARDS = 4


class Died(BaseException):
    """The pool is killed."""


@dataclass(slots=True)
class Program:
    """True times of a program: when it held its slice, and its GPU time."""

    record: AllocationRecord
    began_s: float
    until_s: float
    share: float
    page: pages.UsagePage | None  # until it ends: a day has more programs than a process may have open files
    used_s: float = 0.0
    ended_s: float | None = None


@dataclass(slots=True)
class Day:
    """True and metered usage of the day."""

    held_s: float = 0.0
    used_s: float = 0.0
    kills: int = 0
    restarts: int = 0
    records: list[UsageRecord] = field(default_factory=list)

    @property
    def metered_s(self) -> float:
        return sum(r.allocated_gpu_s for r in self.records)

    @property
    def error_ratio(self) -> float:
        """Relative error of the metered time."""
        return abs(self.metered_s - self.held_s) / self.held_s

    @property
    def used_error_ratio(self) -> float:
        return abs(sum(r.used_gpu_s for r in self.records) - self.used_s) / self.used_s

    def broken(self) -> int:
        """Intervals that are missing, or overlap, or are there twice."""
        found = 0
        for name in {r.allocation for r in self.records}:
            own = sorted((r for r in self.records if r.allocation == name), key=lambda r: r.sequence)
            found += sum(r.sequence != number for number, r in enumerate(own))
            found += sum(abs(b.from_s - a.to_s) > 1e-5 for a, b in pairwise(own))
        return found


class DyingStore:
    """Journal of a pool that may die before or after any write."""

    def __init__(self, store: Store, step: Callable[[], None]) -> None:
        self._store, self._step = store, step

    def __getattr__(self, name: str) -> Any:
        what = getattr(self._store, name)
        if name not in {"grant", "start", "release", "add_usage"}:
            return what

        def call(*given: Any, **named: Any) -> Any:
            self._step()
            result = what(*given, **named)
            self._step()
            return result

        return call


class DyingSlots(FileSlots):
    """Slots of a pool that may die before or after any change."""

    step: Callable[[], None]

    def remove(self, allocation: AllocationId) -> None:
        self.step()
        super().remove(allocation)
        self.step()


class Living:
    """Membership as the kernel would report it."""

    form = "kernel"

    def __init__(self, programs: dict[AllocationId, Program]) -> None:
        self._programs = programs

    def changed_allocations(self) -> None:
        return None

    def populated(self, allocation: AllocationId) -> bool:
        program = self._programs.get(allocation)
        return program is not None and program.ended_s is None

    def prepare(self, allocation: AllocationId) -> None:
        """Do nothing."""

    def group(self, allocation: AllocationId) -> int:
        return 0

    def remove(self, allocation: AllocationId) -> bool:
        return not self.populated(allocation)

    def adopt(self, records: Any) -> set[AllocationId]:
        del records
        return {name for name in self._programs if self.populated(name)}

    def processes(self, allocation: AllocationId) -> list[Any]:
        del allocation
        return []


class SlowToClear:
    """Driver that lists an allocation's program until it is asked a second time, so that releases come a round later."""

    def __init__(self) -> None:
        self._asked: set[AllocationId] = set()

    def is_clear(self, record: AllocationRecord) -> bool:
        asked = record.id in self._asked
        self._asked.add(record.id)
        return asked

    def discard(self, allocation: AllocationId) -> None:
        self._asked.discard(allocation)


class MeteredDay:
    """Runs the day; ``seed`` determines its events."""

    def __init__(self, home: Path, *, seed: int, kills: int, restarts: int, day_s: float = DAY_S) -> None:
        self._home, self._random, self._day_s = home, random.Random(seed), day_s
        self._clock = VirtualClock()
        self._store = open_store("sqlite://")
        self._programs: dict[AllocationId, Program] = {}
        self._day = Day()
        self._dies_in = -1
        self._made = 0
        what = [self._kill] * kills + [self._let_pool_die] * restarts + [self._jump] * 6
        self._events = sorted(
            ((self._random.uniform(60, day_s - 60), event) for event in what), key=lambda event: event[0]
        )
        self._begin()

    def play(self) -> Day:
        """The whole day."""
        while self._now_s() < self._day_s:
            soonest = min([p.until_s for p in self._alive()] + [self._now_s() + 30.0, self._day_s])
            if self._events and self._events[0][0] <= soonest:
                at, event = self._events.pop(0)
                self._pass_until(at)
                event()
            else:
                self._pass_until(soonest)
            for program in self._alive():
                if program.until_s <= self._now_s():
                    self._end(program)
            self._pass_until(self._now_s() + self._random.uniform(0, ROUND_S))
            self._round()
            self._fill()
        for program in self._alive():
            self._end(program)
        self._round()
        self._day.records = self._store.usage()
        self._store.close()
        return self._day

    # -- what happens ------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        living = self._alive()
        if living:
            self._end(self._random.choice(living))
            self._day.kills += 1

    def _let_pool_die(self) -> None:
        self._dies_in = self._random.randrange(6)
        if self._random.random() < 0.5:
            self._kill()

    def _jump(self) -> None:
        self._clock.set_calendar(self._random.choice((-3600.0, 3600.0, 86_400.0)))

    def _end(self, program: Program) -> None:
        program.ended_s, program.page = self._now_s(), None
        self._day.held_s += (program.ended_s - program.began_s) * program.record.placement.slices[0].core_percent / 100
        self._day.used_s += program.used_s

    def _fill(self) -> None:
        taken = [p.record.placement.slices[0].device for p in self._alive()]
        for number in range(CARDS):
            device = DeviceUuid(f"GPU-{number}")
            if taken.count(device) < 2 and self._random.random() < 0.8:
                self._start(device)

    def _start(self, device: DeviceUuid) -> None:
        self._made += 1
        name = AllocationId(f"a{self._made}")
        part = Slice(device=device, memory_mib=1024, core_percent=self._random.choice((10, 25, 50)))
        request = GpuRequest(memory_mib=1024, core_percent=part.core_percent, policy=ComputePolicy.FIXED)
        record = AllocationRecord(
            id=name,
            state=AllocationState.GRANTED,
            request=request,
            placement=Placement(node=NodeName("n"), mode=ModeName("vgpu"), slices=(part,)),
            granted_at=self._clock.now_s(),
        )
        spec = slots_content.SlotSpec(
            allocation=name,
            devices=(slots_content.SlotDevice(uuid=device, policy=ComputePolicy.FIXED),),
            leaseless=True,
        )
        try:
            record = self._allocations.hold(record)
            self._allocations.grant(spec)
        except Died:
            self._restart()
            return  # its client was told nothing and asks for nothing any more
        now_s = self._now_s()
        self._programs[name] = Program(
            record=record,
            began_s=now_s,
            until_s=now_s + self._random.expovariate(1 / 1500),
            share=self._random.choice((0.0, 0.3, 1.0)),
            page=pages.UsagePage.of_slot(self._slots.path(name)),
        )

    # -- the pool ----------------------------------------------------------------------------------------------

    def _round(self) -> None:
        try:
            began = self._usage_tracker.meters.now()
            self._usage_tracker.meters.note_living(self._allocations.lives)
            changes = self._allocations.sweep()
            assert not changes.failures, changes.failures
            self._mark.write(began)
            self._pass_until(self._now_s() + ROUND_S)  # what has ended asks the driver, and is released a round later
            self._allocations.sweep()
            records = self._allocations.records()
            self._usage_tracker.tick(records)
            self._usage_tracker.checkpoint(records, cast("Store", self._journal))
        except Died:
            self._restart()

    def _restart(self) -> None:
        """Stay down for a while, in which programs run on and end; then start a new pool."""
        self._day.restarts += 1
        self._dies_in = -1
        self._mark.close()
        self._pass_until(self._now_s() + self._random.uniform(1, 20))
        for program in self._alive():
            if program.until_s <= self._now_s() or self._random.random() < 0.1:
                self._end(program)
        self._pass_until(self._now_s() + self._random.uniform(0, 5))
        self._begin()

    def _begin(self) -> None:
        self._mark = LastRound(self._home)
        self._slots = DyingSlots(self._home / "alloc")
        self._slots.step = self._step
        self._journal = DyingStore(self._store, self._step)
        self._usage_tracker = UsageTracker(
            self._slots, self._clock, meters=Meters(self._clock, boot="boot", mark=self._mark.read())
        )
        self._allocations = Allocations(
            store=cast("Any", self._journal),
            slots=self._slots,
            membership=cast("Any", Living(self._programs)),
            clock=self._clock,
            occupancy=SlowToClear(),
            usage_of=self._usage_tracker.close,
            boot="boot",
        )
        for record in self._store.allocations():
            self._usage_tracker.restore(record, self._store.usage_sums.all_so_far([record]).get(record.id))
        self._allocations.recover()
        self._usage_tracker.meters.note_living(self._allocations.lives)

    def _step(self) -> None:
        if self._dies_in == 0:
            self._dies_in = -1
            raise Died
        self._dies_in -= self._dies_in > 0

    # -- time --------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _alive(self) -> list[Program]:
        return [p for p in self._programs.values() if p.ended_s is None]

    def _pass_until(self, at_s: float) -> None:
        """Programs work meanwhile and say so in their pages."""
        passed_s = at_s - self._now_s()
        if passed_s <= 0:
            return
        self._clock.advance(passed_s)
        for program in self._alive():
            program.used_s += passed_s * program.share
            assert program.page is not None
            device = program.page._page.device[0]
            device.charged_ns = int(program.used_s * 1e9)
            if program.share:
                device.demand_ns = self._clock.monotonic_ns()


def played(home: Path, *, seed: int = 1, kills: int = 200, restarts: int = 20, day_s: float = DAY_S) -> Day:
    """One such day. Raises CalabashError when the node cannot be made."""
    if not home.is_dir():
        raise CalabashError(f"{home} is no directory")
    return MeteredDay(home, seed=seed, kills=kills, restarts=restarts, day_s=day_s).play()
