"""State machine of the journal: a crash at any point of grant and release leads to the same state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.examples import examples
from tests.stand_ins import NothingListed

from calabash.adapters.host.processes import Process
from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.allocations.end_reasons import ended_error
from calabash.node.allocations.lifecycle import LifecycleStep, Witnesses, next_step
from calabash.node.allocations.retention import GRANT_GRACE_NS
from calabash.node.allocations.table import FULL_SWEEP_NS, Allocations
from calabash.node.membership.lease import LeaseMembership
from calabash.node.slots import content as slots_content
from calabash_testing.clock import VirtualClock


class Crash(BaseException):
    """Loss of power."""


class World:
    """State that survives a crash: the journal, the slots, and the holders of leases."""

    def __init__(self) -> None:
        self.journal: dict[AllocationId, AllocationRecord] = {}
        self.slots: set[AllocationId] = set()
        self.holders: dict[AllocationId, int] = {}
        self.billed: list[AllocationId] = []
        self.ended: set[AllocationId] = set()  # whose programs were ended because they were released
        self.crash_in = -1
        self.fail_in = -1

    def step(self) -> None:
        """Crash if it is due; called before and after every change that survives a crash."""
        if self.crash_in == 0:
            raise Crash
        self.crash_in -= 1

    def may_fail(self) -> None:
        """Fail if it is due; the failure is no crash."""
        if self.fail_in == 0:
            self.fail_in = -1
            raise CalabashError("the disk is full", reason=Reason.DISK_FULL)
        self.fail_in -= 1


class FakeStore:
    def __init__(self, world: World) -> None:
        self.world = world

    def grant(self, record: AllocationRecord) -> None:
        self.world.may_fail()
        self.world.step()
        self.world.journal.setdefault(record.id, record)
        self.world.step()

    def start(self, allocation: AllocationId, *, at: float) -> None:
        self._move(allocation, {AllocationState.GRANTED}, state=AllocationState.RUNNING, started_at=at)

    def add_usage(self, records: Any) -> None:
        if records:
            self.world.may_fail()
            self.world.step()

    def note(self, allocation: AllocationId, *, end: tuple[str, str]) -> None:
        self.world.may_fail()
        self.world.step()
        held = self.world.journal[allocation]
        self.world.journal[allocation] = replace(held, reason=end[0], explanation=end[1])
        self.world.step()

    def allocation(self, allocation: AllocationId) -> AllocationRecord | None:
        return self.world.journal.get(allocation)

    def release(self, allocation: AllocationId, *, at: float, reason: str, explanation: str, usage: Any = ()) -> None:
        held = {AllocationState.GRANTED, AllocationState.RUNNING}
        released = AllocationState.RELEASED
        self._move(allocation, held, state=released, ended_at=at, reason=reason, explanation=explanation)

    def _move(self, allocation: AllocationId, before: set[AllocationState], **changes: Any) -> None:
        self.world.may_fail()
        self.world.step()
        record = self.world.journal.get(allocation)
        if record is not None and record.state in before:
            self.world.journal[allocation] = replace(record, **changes)
            if changes["state"] is AllocationState.RELEASED:
                self.world.billed.append(allocation)  # one transaction with the release
        self.world.step()

    def allocations(self) -> list[AllocationRecord]:
        return [r for r in self.world.journal.values() if r.state is not AllocationState.RELEASED]


class FakeMembership:
    form = "kernel"

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: dict[AllocationId, bool] = {}
        self.observations = 0

    def prepare(self, allocation: AllocationId) -> None:
        self.world.may_fail()
        self.world.step()

    def changed_allocations(self) -> set[AllocationId]:
        """Return the allocations whose first member came or whose last member ended, and no others."""
        now = {name: count > 0 for name, count in self.world.holders.items()}
        changed = {name for name, populated in now.items() if populated != self.told.get(name, False)}
        self.told = now
        return changed

    def populated(self, allocation: AllocationId) -> bool:
        self.observations += 1
        return self.world.holders.get(allocation, 0) > 0

    def group(self, allocation: AllocationId) -> int:
        return 0

    def remove(self, allocation: AllocationId) -> bool:
        return not self.populated(allocation)

    def adopt(self, records: Any) -> set[AllocationId]:
        return {a for a, count in self.world.holders.items() if count}


class FakeSlots:
    def __init__(self, world: World) -> None:
        self.world = world

    def path(self, allocation: AllocationId) -> Path:
        return Path("/slots") / allocation

    def create(self, spec: slots_content.SlotSpec) -> None:
        self.world.may_fail()
        self.world.step()
        self.world.slots.add(spec.allocation)
        self.world.step()

    def bind(self, allocation: AllocationId, group: int) -> None:
        assert allocation in self.world.slots
        self.world.step()

    def remove(self, allocation: AllocationId) -> None:
        self.world.step()
        self.world.slots.discard(allocation)
        self.world.step()

    def exists(self, allocation: AllocationId) -> bool:
        return allocation in self.world.slots

    def all(self) -> list[AllocationId]:
        return sorted(self.world.slots)

    def sweep(self) -> None:
        pass


CARD = DeviceUuid("GPU-1")


def _record(name: str) -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=1, core_percent=1)
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1, core_percent=1),
        placement=Placement(node=NodeName("n"), mode=ModeName("vgpu"), slices=(part,)),
    )


def _spec(name: str) -> slots_content.SlotSpec:
    return slots_content.SlotSpec(allocation=AllocationId(name), devices=(slots_content.SlotDevice(uuid=CARD),))


def _pool(world: World, clock: VirtualClock | None = None) -> Allocations:
    """One that begins in that world."""
    store, slots, membership = (cast("Any", kind(world)) for kind in (FakeStore, FakeSlots, FakeMembership))
    return Allocations(
        store=store, slots=slots, membership=membership, clock=clock or VirtualClock(), occupancy=NothingListed()
    )


class JournalMachine(RuleBasedStateMachine):
    """Grants, programs that start and end, failures and crashes at random points; then everything ends."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.clock = VirtualClock()
        self.number = 0
        self.answered: set[AllocationId] = set()
        self.allocations: Allocations | None = None

    def _allocations(self) -> Allocations:
        if self.allocations is None:
            self.world.crash_in = self.world.fail_in = -1
            self.allocations = _pool(self.world, self.clock)
            self.allocations.recover()
        return self.allocations

    @initialize()
    def begin(self) -> None:
        self._allocations()

    @rule(
        crash_in=st.integers(-1, 6),
        fail_in=st.integers(-1, 3),
        comes=st.booleans(),
        meanwhile=st.sampled_from(["nothing", "sweep", "ended", "cannot be made"]),
    )
    def ask(self, crash_in: int, fail_in: int, comes: bool, meanwhile: str) -> None:
        allocations = self._allocations()
        self.number += 1
        name = AllocationId(f"a{self.number}")
        self.world.crash_in, self.world.fail_in = crash_in, fail_in
        try:
            allocations.hold(_record(name))
            self._during_creation(allocations, name, meanwhile)
            allocations.grant(_spec(name))
        except Crash:
            self.allocations = None
            return
        except CalabashError:
            assert allocations.get(name) is None
            assert name not in self.world.slots
            return
        finally:
            self.world.crash_in = self.world.fail_in = -1
        self.answered.add(name)
        if comes:
            self.world.holders[name] = 1

    @staticmethod
    def _during_creation(allocations: Allocations, name: AllocationId, meanwhile: str) -> None:
        """Play what happens while the mode creates what it needs, without the lock."""
        assert allocations.making(name)
        if meanwhile == "sweep":
            allocations.sweep()
            assert allocations.get(name) is not None  # its room stays held
        elif meanwhile == "ended":
            allocations.end(name, reason="released", explanation="its requester has gone")
        elif meanwhile == "cannot be made":
            error = CalabashError("no room for the partition", reason=Reason.NO_CAPACITY)
            allocations.give_up(name, error)
            raise error

    @rule(pick=st.integers(0, 100), crash_in=st.integers(-1, 6))
    def a_program_ends(self, pick: int, crash_in: int) -> None:
        running = sorted(a for a, n in self.world.holders.items() if n)
        if running:
            self.world.holders[running[pick % len(running)]] = 0
        self.a_sweep_runs(crash_in)

    @rule(pick=st.integers(0, 100))
    def an_allocation_is_ended(self, pick: int) -> None:
        allocations = self._allocations()
        held = [r.id for r in allocations.records()]
        if held:
            allocations.end(held[pick % len(held)], reason="released", explanation="")

    @rule(crash_in=st.integers(-1, 8))
    def a_sweep_runs(self, crash_in: int) -> None:
        allocations = self._allocations()
        self.world.crash_in = crash_in
        try:
            changes = allocations.sweep()
        except Crash:
            self.allocations = None
        else:
            for record in changes.to_end:
                self.world.holders[record.id] = 0
                self.world.ended.add(record.id)
        finally:
            self.world.crash_in = -1

    @rule()
    def time_passes(self) -> None:
        self.clock.advance(GRANT_GRACE_NS / 1e9 + 1)

    @rule()
    def power_is_cut(self) -> None:
        self.allocations = None

    @invariant()
    def a_slot_in_use_is_never_taken_away(self) -> None:
        for allocation, count in self.world.holders.items():
            if count:
                assert allocation in self.world.slots

    @invariant()
    def what_is_in_use_is_in_the_journal_and_held(self) -> None:
        allocations = self._allocations()
        for allocation, count in self.world.holders.items():
            if count:
                assert self.world.journal[allocation].state is not AllocationState.RELEASED
                assert allocations.get(allocation) is not None

    @invariant()
    def nothing_is_released_twice(self) -> None:
        assert len(self.world.billed) == len(set(self.world.billed))

    def teardown(self) -> None:
        self.allocations = None
        allocations = self._allocations()
        for allocation in self.world.holders:
            self.world.holders[allocation] = 0
        self.clock.advance(GRANT_GRACE_NS / 1e9 + 1)
        allocations.sweep()
        assert allocations.records() == []
        assert self.world.slots == set()
        assert all(r.state is AllocationState.RELEASED for r in self.world.journal.values())
        assert set(self.world.billed) == set(self.world.journal)
        assert {self.world.journal[a].reason for a in self.world.ended} <= {"released"}


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=examples(150), stateful_step_count=25, deadline=None)


def test_entry_without_slot_is_closed_and_slot_without_entry_waits_for_its_users() -> None:
    assert next_step(Witnesses(entry=AllocationState.GRANTED, slot=False)) is LifecycleStep.CLOSE_ENTRY
    assert next_step(Witnesses(entry=AllocationState.RUNNING, slot=False)) is LifecycleStep.CLOSE_ENTRY
    assert next_step(Witnesses(entry=None, slot=True, in_use=True)) is LifecycleStep.KEEP
    assert next_step(Witnesses(entry=None, slot=True, in_use=False)) is LifecycleStep.REMOVE_SLOT


def test_programs_without_slot_are_ended_before_their_entry_is_closed() -> None:
    seen = Witnesses(entry=AllocationState.RUNNING, slot=False, in_use=True)
    assert next_step(seen) is LifecycleStep.END_PROGRAMS


@given(
    st.builds(
        Witnesses,
        entry=st.none() | st.sampled_from(AllocationState),
        slot=st.booleans(),
        in_use=st.booleans(),
        awaited=st.booleans(),
        ending=st.booleans(),
    )
)
def test_slot_is_removed_only_while_unused(seen: Witnesses) -> None:
    if next_step(seen) is LifecycleStep.REMOVE_SLOT:
        assert seen.slot
        assert not seen.in_use


def test_orphaned_slot_keeps_its_device_until_its_users_have_ended(tmp_path: Path) -> None:
    from calabash.adapters.host.files import Lease
    from calabash.node.slots.files import FileSlots

    slots = FileSlots(tmp_path)
    slots.create(_spec("stranger"))
    user = Lease(tmp_path / "stranger" / "lease")
    import fcntl

    fcntl.flock(user._descriptor, fcntl.LOCK_SH)
    store = cast("Any", FakeStore(World()))
    membership = LeaseMembership(lambda allocation: tmp_path / allocation / "lease")
    allocations = Allocations(
        store=store, slots=slots, membership=membership, clock=VirtualClock(), occupancy=NothingListed()
    )
    allocations.recover()
    assert allocations.orphaned(CARD) == ["stranger"]
    assert slots.all() == ["stranger"]
    user.close()
    allocations.sweep()
    assert allocations.orphaned(CARD) == []
    assert slots.all() == []


def test_partly_created_and_partly_removed_slots_are_swept(tmp_path: Path) -> None:
    from calabash.node.slots.files import FileSlots

    slots = FileSlots(tmp_path)
    slots.create(_spec("whole"))
    (tmp_path / ".new-half").mkdir()
    (tmp_path / ".gone-half").mkdir()
    (tmp_path / ".gone-half" / "limits").write_bytes(b"x")
    slots.sweep()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["whole"]


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "A" * 70])
def test_name_outside_of_the_directory_is_never_a_slot(tmp_path: Path, name: str) -> None:
    from calabash.node.slots.files import FileSlots

    with pytest.raises(CalabashError):
        FileSlots(tmp_path).path(AllocationId(name))


def test_last_interval_is_written_with_the_release() -> None:
    world = World()
    written: list[Any] = []

    class Recording(FakeStore):
        def release(self, allocation: AllocationId, **fields: Any) -> None:
            written.extend(fields["usage"])
            super().release(allocation, **fields)

    interval = UsageRecord(
        allocation=AllocationId("a1"),
        device=CARD,
        tenant="t",
        queue="q",
        from_s=0,
        to_s=1,
        memory_mib=1,
        core_percent=1,
        allocated_gpu_s=0.01,
        used_gpu_s=0,
        memory_mib_s=1,
    )
    allocations = Allocations(
        store=cast("Any", Recording(world)),
        slots=cast("Any", FakeSlots(world)),
        membership=cast("Any", FakeMembership(world)),
        clock=VirtualClock(),
        occupancy=NothingListed(),
        usage_of=lambda _: [interval],
    )
    allocations.hold(_record("a1"))
    allocations.grant(_spec("a1"))
    allocations.end(AllocationId("a1"), reason="released", explanation="")
    allocations.sweep()
    assert written == [interval]


def test_start_is_journalled_at_the_next_sweep_and_survives_a_crash_before() -> None:
    world = World()
    allocations = _pool(world)
    name = AllocationId("a1")
    allocations.hold(_record(name))
    allocations.grant(_spec(name))
    world.holders[name] = 1
    program = Process(pid=1, start_time=1)
    started = allocations.started(name, program)
    assert started is not None
    assert started.state is AllocationState.RUNNING
    assert world.journal[name].state is AllocationState.GRANTED
    again = _pool(world)
    again.recover()
    assert world.journal[name].state is AllocationState.RUNNING
    world.journal[name] = replace(world.journal[name], state=AllocationState.GRANTED)
    allocations.sweep()
    assert world.journal[name].started_at == started.started_at


def test_allocation_that_ended_while_no_pool_ran_is_not_reported_as_never_taken() -> None:
    world = World()
    before, clock = _pool(world), VirtualClock()
    for name in ("a1", "a2"):
        before.hold(_record(name))
        before.grant(_spec(name))
    again = _pool(world, clock)
    again.recover()
    again.hold(_record("a3"))
    again.grant(_spec("a3"))
    clock.advance(3600)
    released = {record.id: record for record in again.sweep().released}
    assert {released[AllocationId(name)].reason for name in ("a1", "a2")} == {"ended"}
    assert "new pool" in in_full(released[AllocationId("a1")].explanation)
    assert released[AllocationId("a3")].explanation == "nobody took the slice"


def test_reason_of_an_end_is_journalled_before_programs_are_ended_and_kept_by_the_next_pool() -> None:
    world = World()
    name = AllocationId("a1")
    before = _pool(world)
    before.hold(_record(name))
    before.grant(_spec(name))
    world.holders[name] = 1
    before.end(name, reason="reclaim", explanation="its devices were needed for a2")
    world.fail_in = 0
    full = before.sweep()
    assert [record.id for record in full.to_end] == [name], "a full disk keeps nobody running"
    assert [failure.reason for failure in full.failures] == [Reason.DISK_FULL]
    assert [record.id for record in before.sweep().to_end] == [name]
    world.holders[name] = 0  # the signal was on its way when the pool died
    (released,) = _pool(world).recover().released
    assert (released.reason, released.explanation) == ("reclaim", "its devices were needed for a2")


def test_request_for_an_ended_allocation_gets_the_reason_of_its_end() -> None:
    world = World()
    allocations, store = _pool(world), cast("Any", FakeStore(world))
    assert ended_error(allocations, store, AllocationId("a0")).reason is Reason.NOT_FOUND
    for name, reason, told in (("a1", "reclaim", Reason.RECLAIM), ("a2", "drained", Reason.CONFLICT)):
        allocations.hold(_record(name))
        allocations.grant(_spec(name))
        allocations.end(AllocationId(name), reason=reason, explanation=f"needed for {name}")
        ending = ended_error(allocations, store, AllocationId(name))
        allocations.sweep()
        assert allocations.get(AllocationId(name)) is None
        ended = ended_error(allocations, store, AllocationId(name))
        assert (ended.reason, ended.message) == (ending.reason, ending.message)
        assert ended.reason is told
        assert ended.message == f"allocation {name} ended before its program started: needed for {name}"
        assert ended.hint


class _Retention:
    """Retention policy that keeps allocations without processes until the test changes it."""

    def __init__(self) -> None:
        self.retained = True

    def retains(self, record: AllocationRecord, held_ns: int) -> bool:
        del record, held_ns
        return self.retained

    def is_abandoned(self, record: AllocationRecord) -> bool:
        del record
        return not self.retained


def test_retained_allocation_is_kept_while_its_programs_start_and_end() -> None:
    world, clock, retention = World(), VirtualClock(), _Retention()

    def opened() -> Allocations:
        return Allocations(
            store=cast("Any", FakeStore(world)),
            slots=cast("Any", FakeSlots(world)),
            membership=cast("Any", FakeMembership(world)),
            clock=clock,
            occupancy=NothingListed(),
            retention=retention,
        )

    name = AllocationId("a1")
    allocations = opened()
    allocations.hold(_record(name))
    allocations.grant(_spec(name))
    clock.advance(3600)  # its container waits for something else
    assert allocations.sweep().released == []
    world.holders[name] = 1
    assert [r.id for r in allocations.sweep().started] == [name]
    world.holders.clear()  # the container has ended, and is to be started again
    clock.advance(3600)
    assert allocations.sweep().released == []
    again = opened()
    assert again.recover().released == []
    retention.retained = False
    assert [r.id for r in again.sweep().released] == [name]
    assert world.slots == set()


def _running(world: World, count: int) -> tuple[Allocations, FakeMembership, VirtualClock]:
    """Return a pool with ``count`` allocations whose programs run, after it has observed all of them."""
    clock, membership = VirtualClock(), FakeMembership(world)
    store, slots = (cast("Any", kind(world)) for kind in (FakeStore, FakeSlots))
    allocations = Allocations(
        store=store, slots=slots, membership=cast("Any", membership), clock=clock, occupancy=NothingListed()
    )
    for number in range(count):
        allocations.hold(_record(f"a{number}"))
        allocations.grant(_spec(f"a{number}"))
        world.holders[AllocationId(f"a{number}")] = 1
    allocations.sweep()
    allocations.sweep()
    return allocations, membership, clock


def test_sweep_observes_only_allocations_whose_members_changed() -> None:
    world = World()
    allocations, membership, clock = _running(world, 100)
    membership.observations = 0
    for _ in range(40):
        clock.advance(0.1)
        assert allocations.sweep().released == []
    assert membership.observations == 0
    world.holders[AllocationId("a7")] = 0
    assert [record.id for record in allocations.sweep().released] == ["a7"]
    assert membership.observations < 5


def test_sweep_observes_all_allocations_every_few_seconds() -> None:
    world = World()
    allocations, _, clock = _running(world, 10)
    world.slots.discard(AllocationId("a3"))  # nothing tells of it
    for _ in range(int(FULL_SWEEP_NS / 1e9 / 0.5) + 1):
        clock.advance(0.5)
        if changes := allocations.sweep().to_end:
            break
    assert [record.id for record in changes] == ["a3"]


def test_end_of_a_settled_allocation_is_seen_at_the_next_sweep() -> None:
    allocations, _, _ = _running(World(), 10)
    allocations.end(AllocationId("a3"), reason="released", explanation="")
    for _ in range(3):  # as long as its programs live
        assert [record.id for record in allocations.sweep().to_end] == ["a3"]
