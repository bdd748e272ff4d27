"""Modes that take seconds to create an allocation: its capacity is held and other grants do not wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from calabash.adapters.store import Store, open_store
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceReading, DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node import wiring
from calabash.node.agent import Grant, NodeAgent
from calabash.node.membership.lease import LeaseMembership
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.slots.content import SlotDevice
from calabash.sharing.protocol import Edits
from calabash_testing.clock import VirtualClock

CARDS = tuple(
    Device(uuid=DeviceUuid(f"GPU-{i}"), index=i, vendor="nvidia", model="A100", memory_mib=40_000) for i in range(2)
)
SLOW, QUICK = CARDS
EXCLUSIVE = ModeName("exclusive")
BOUND_S = 60.0


class Driver:
    """Cards that answer."""

    vendor = "nvidia"

    def devices(self) -> tuple[Device, ...]:
        return CARDS

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        return DeviceReading(uuid=uuid, memory_used_mib=0, utilization_percent=0, temperature_c=30, power_w=50.0)


class Slow(ViewOnly):
    """Mode that partitions the first card for as long as the test says."""

    name = EXCLUSIVE

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.fails = False
        self.left: list[str] = []

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        if record.placement.slices[0].device == SLOW.uuid:
            self.begun.set()
            assert self.go_on.wait(BOUND_S)
        if self.fails:
            raise CalabashError("the driver refuses", reason=Reason.NO_CAPACITY)
        return tuple(SlotDevice(uuid=DeviceUuid(f"MIG-{part.device}")) for part in record.placement.slices)

    def edits(self, record: AllocationRecord) -> Edits:
        return Edits(environment=(("CUDA_VISIBLE_DEVICES", f"MIG-{record.placement.slices[0].device}"),))

    def leave(self, record: AllocationRecord) -> None:
        self.left.append(record.id)


def _record(name: str, card: Device) -> AllocationRecord:
    part = Slice(device=card.uuid, memory_mib=card.memory_mib, core_percent=100)
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(mode=EXCLUSIVE),
        placement=Placement(node=NodeName("n"), mode=EXCLUSIVE, slices=(part,)),
    )


class Node:
    """An agent without threads, on two cards."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def modes(tools: NodeTools) -> Mapping[ModeName, Slow]:
            mode = Slow(tools)
            self.modes.append(mode)
            return {EXCLUSIVE: mode}

        self.modes: list[Slow] = []
        monkeypatch.setattr(wiring, "open_modes", modes)
        self.store: Store = open_store(f"sqlite:///{home}/journal.db")
        self.clock = VirtualClock()
        self.agent = NodeAgent(
            home=home,
            store=self.store,
            clock=self.clock,
            drivers=[cast("Any", Driver())],
            library=home / "libcalabash.so",
            node="n",
            membership=LeaseMembership(lambda allocation: home / "alloc" / allocation / "lease"),
        )
        self.mode = self.modes[0]
        self.answers: list[Grant | CalabashError] = []
        self.thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        try:
            self.answers.append(self.agent.grant(_record("slow", SLOW)))
        except CalabashError as error:
            self.answers.append(error)

    def begin(self) -> None:
        self.thread.start()
        assert self.mode.begun.wait(BOUND_S)

    def end(self) -> Grant | CalabashError:
        self.mode.go_on.set()
        self.thread.join(BOUND_S)
        return self.answers[0]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path, monkeypatch)
    made.begin()
    yield made
    made.end()
    made.store.close()


def test_capacity_is_held_and_other_grants_proceed_while_an_allocation_is_created(node: Node) -> None:
    assert [r.id for r in node.store.allocations()] == ["slow"]
    with pytest.raises(CalabashError) as refused:
        node.agent.grant(_record("another", SLOW))
    assert refused.value.reason is Reason.NO_CAPACITY
    assert node.agent.grant(_record("beside", QUICK)).record.id == "beside"
    answer = node.end()
    assert isinstance(answer, Grant)
    assert dict(answer.edits.environment)["CUDA_VISIBLE_DEVICES"] == "MIG-GPU-0"
    assert b"MIG-GPU-0" in (Path(answer.record.slot) / "limits").read_bytes()


def test_granted_allocation_has_usage_before_any_round_of_the_watch_thread(node: Node) -> None:
    wanted = replace(_record("beside", QUICK), granted_at=node.clock.now_s())
    held = node.agent.grant(wanted).record.id
    node.clock.advance(3.0)
    records, until_s = node.agent.open_usage.records()
    assert [(r.allocation, r.allocated_gpu_s) for r in records] == [(held, 3.0)]
    assert node.agent.open_usage.write() == (until_s, {})
    assert [(r.allocation, r.allocated_gpu_s) for r in node.store.usage()] == [(held, 3.0)]


def test_repeated_grant_is_refused_while_the_allocation_is_created(node: Node) -> None:
    with pytest.raises(CalabashError, match="is being created") as refused:
        node.agent.grant(_record("slow", SLOW))
    assert refused.value.reason is Reason.CONFLICT
    assert isinstance(node.end(), Grant)
    assert node.agent.grant(_record("slow", SLOW)).record.id == "slow"


def test_failed_allocation_holds_nothing(node: Node) -> None:
    node.mode.fails = True
    answer = node.end()
    assert isinstance(answer, CalabashError)
    assert answer.message == "the driver refuses"
    assert node.agent.records() == []
    assert list(node.store.allocations()) == []
    assert node.mode.left == ["slow"]
    node.mode.fails = False
    assert node.agent.grant(_record("after", SLOW)).record.id == "after"


def test_allocation_whose_end_is_requested_during_creation_is_not_granted(node: Node) -> None:
    assert node.agent.end(AllocationId("slow"), reason="released", explanation="nobody wants it any more")
    answer = node.end()
    assert isinstance(answer, CalabashError)
    assert "nobody wants it any more" in answer.message
    assert node.agent.records() == []
    assert node.mode.left == ["slow"]


def test_slot_created_during_a_check_of_pages_is_not_reported_as_damaged(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, slots = node.agent._parts.slots.pages, node.agent._parts.slots

    def not_there_yet(allocation: AllocationId) -> Any:
        monkeypatch.setattr(slots, "pages", pages)
        node.end()
        raise CalabashError(f"cannot open the limits of {allocation}", reason=Reason.BAD_FILE)

    monkeypatch.setattr(slots, "pages", not_there_yet)
    node.agent._threads._watch()
    monkeypatch.setattr(slots, "pages", pages)
    assert isinstance(node.end(), Grant)
    assert [r.reason for r in node.agent.records()] == [""]
    assert [e.kind for e in node.store.events() if e.kind == "hostile"] == []


def test_allocation_being_created_when_the_pool_died_is_closed_by_the_next(node: Node) -> None:
    again = NodeAgent(
        home=Path(node.agent._parts.slots.root).parent,
        store=node.store,
        clock=VirtualClock(),
        drivers=[cast("Any", Driver())],
        library=Path("/nowhere"),
        node="n",
        membership=LeaseMembership(lambda allocation: Path("/nowhere") / allocation),
    )
    with again._parts.lock:
        released = again._parts.allocations.recover().released
    assert [r.id for r in released] == ["slow"]
    assert again.records() == []


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_drained_card_is_emptied_after_its_grace_period_if_the_calendar_is_set(node: Node, jump_s: float) -> None:
    held = node.agent.grant(_record("beside", QUICK)).record.id
    administration, ending = node.agent.administration, node.agent._parts.allocations.ending
    administration.drain(QUICK, why="a new fan", evict_after_s=600.0)
    node.clock.set_calendar(jump_s)
    node.clock.advance(590.0)
    administration.evict()
    assert ending(held) is None
    assert administration.entry(QUICK).evict_at_s == pytest.approx(node.clock.now_s() + 10.0), (
        "as the calendar has it now"
    )
    node.clock.advance(11.0)
    administration.evict()
    reason, explanation = ending(held) or ("", "")
    assert (reason, in_full(explanation)) == (Reason.DRAINED, "device 1 is drained: a new fan")
