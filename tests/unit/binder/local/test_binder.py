"""Decisions that contradict each other within one pass keep nobody from an answer, nor does a cycle that ends early."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from tests.unit.binder.local.test_machine import device

from calabash.binder.local import wait_times
from calabash.binder.local.binder import Binder
from calabash.binder.local.machine import Start, Stop
from calabash.binder.local.requests import Requester
from calabash.binder.local.wait_times import BOUNDS_S, WaitOutcome
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.grant import Grant
from calabash.node.snapshot import DeviceSnapshot
from calabash.sched import CycleLimit, QueueSpec
from calabash.sharing.protocol import Edits
from calabash_testing.clock import VirtualClock

PLACE = Placement(
    node=NodeName("here"), mode=ModeName("vgpu"), slices=(Slice(device=device(0).uuid, memory_mib=1, core_percent=1),)
)
RAN = AllocationId("ran")


class Agent:
    """One device. Grants nothing, and says so."""

    node = NodeName("here")

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.asked: list[str] = []

    def devices(self) -> list[DeviceSnapshot]:
        return [DeviceSnapshot(device=device(0), mode=None, held=())]

    def records(self) -> list[Any]:
        return []

    def record(self, _: str) -> None:
        return None

    def end(self, allocation: str, *, reason: str, explanation: str) -> None:
        del reason, explanation
        self.ended.append(allocation)

    def grant(self, record: Any) -> Any:
        self.asked.append(record.id)
        raise CalabashError("nothing is granted here", reason=Reason.UNSUPPORTED)


def test_eviction_with_a_restart_in_the_same_pass_blocks_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent: Any = Agent()
    binder = Binder(agent=agent, queues=lambda: [QueueSpec(name="default")], clock=VirtualClock())
    newcomer: list[AllocationId] = []

    def decide() -> tuple[object, ...]:
        waiting = [w.id for w in binder.waiting() if w.id not in newcomer]
        newcomer.extend(waiting)
        starts = [Start(id=name, placement=PLACE) for name in (RAN, *waiting)]
        return (Stop(id=RAN, reason=Reason.RECLAIM, by=waiting[0]), *starts) if waiting else ()

    monkeypatch.setattr(binder._tracker, "decide", decide)
    request = GpuRequest(memory_mib=1, core_percent=1)
    waiting = binder.submit(request, requester=Requester(uid=1, user="ann"), command=(), wait=True)
    assert agent.ended == [RAN]
    assert agent.asked == newcomer == [waiting.id]
    with pytest.raises(CalabashError, match="nothing is granted here"):
        waiting.answer.result(timeout=0)
    assert binder.find(RAN) is None


def test_request_overtaken_during_its_grant_waits_and_is_granted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent: Any = Agent()
    binder = Binder(agent=agent, queues=lambda: [QueueSpec(name="default")], clock=VirtualClock())
    asked: list[Any] = []

    def grant(record: Any) -> Any:
        asked.append(record)
        if len(asked) == 1:  # another request is preferred meanwhile
            binder._evict(Stop(id=record.id, reason=Reason.RECLAIM, by=AllocationId("owner")))
        return Grant(record=record, edits=Edits())

    monkeypatch.setattr(agent, "grant", grant)
    request = GpuRequest(memory_mib=1, core_percent=1)
    waiting = binder.submit(request, requester=Requester(uid=1, user="ann"), command=(), wait=True)
    first, second = asked
    assert agent.ended == [first.id]
    assert first.id != second.id == waiting.id
    assert waiting.answer.result(timeout=0).record is second
    assert binder.waiting() == []


def test_request_overtaken_and_withdrawn_during_its_grant_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent: Any = Agent()
    binder = Binder(agent=agent, queues=lambda: [QueueSpec(name="default")], clock=VirtualClock())

    def grant(record: Any) -> Any:
        (waiting,) = binder.waiting()
        binder._evict(Stop(id=record.id, reason=Reason.RECLAIM, by=AllocationId("owner")))
        assert binder.withdraw(waiting, why="its caller went away")
        return Grant(record=record, edits=Edits())

    monkeypatch.setattr(agent, "grant", grant)
    request = GpuRequest(memory_mib=1, core_percent=1)
    waiting = binder.submit(request, requester=Requester(uid=1, user="ann"), command=(), wait=True)
    assert agent.ended == [waiting.id]
    assert waiting.answer.cancelled()
    assert binder.waiting() == []


def test_request_is_tried_at_once_although_no_cycle_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each cycle comes to one request. Nothing else asks for a cycle, and the newcomer is the last in the order."""
    agent: Any = Agent()
    held: list[Any] = []

    def grant(record: Any) -> Any:
        held.append(record)
        return Grant(record=record, edits=Edits())

    monkeypatch.setattr(agent, "grant", grant)
    monkeypatch.setattr(agent, "records", lambda: held)
    ticks = itertools.count()
    limit = CycleLimit(clock=lambda: float(next(ticks)), limit_s=0.5)
    binder = Binder(agent=agent, queues=lambda: [QueueSpec(name="default")], clock=VirtualClock(), limit=limit)
    binder._passes.stop()
    ann = Requester(uid=1, user="ann")
    for number in range(20):  # the first one is granted
        request = GpuRequest(memory_mib=30_000 - number, core_percent=50)
        binder.submit(request, requester=ann, command=(), wait=True)
    assert len(held) == 1
    binder._tracker.scheduler.scheduler.state.freed()
    waiting = binder.submit(GpuRequest(memory_mib=1, core_percent=1), requester=ann, command=(), wait=False)
    assert waiting.answer.result(timeout=0).record is held[1]


def test_pool_decides_again_at_the_time_that_the_scheduler_names(monkeypatch: pytest.MonkeyPatch) -> None:
    agent: Any = Agent()
    binder = Binder(agent=agent, queues=lambda: [QueueSpec(name="default")], clock=VirtualClock())
    scheduler, named, passes = binder._tracker.scheduler, iter([0.05, 0.0]), threading.Semaphore(0)

    def decide() -> tuple[()]:
        passes.release()
        return ()

    monkeypatch.setattr(binder._tracker, "decide", decide)
    monkeypatch.setattr(scheduler, "due_in_s", lambda _: next(named, None))
    binder.schedule()
    for _ in range(3):
        assert passes.acquire(timeout=60)
    binder.close()


def test_waiting_times_are_counted_by_queue_and_outcome_without_requests_that_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent: Any = Agent()
    clock = VirtualClock()
    binder = Binder(agent=agent, queues=lambda: [QueueSpec(name="default")], clock=clock)
    starts: list[Start] = []
    monkeypatch.setattr(binder._tracker, "decide", lambda: [starts.pop()] if starts else [])
    monkeypatch.setattr(agent, "grant", lambda record: Grant(record=record, edits=Edits()))
    request, requester = GpuRequest(memory_mib=1, core_percent=1), Requester(uid=1, user="ann")
    granted, withdrawn = (binder.submit(request, requester=requester, command=(), wait=True) for _ in range(2))
    at_once = binder.submit(request, requester=requester, command=(), wait=False)
    assert binder.withdraw(at_once, why="it did not want to wait")
    clock.advance(15)
    starts.append(Start(id=granted.id, placement=PLACE))
    binder.schedule()
    clock.advance(86_400)
    assert binder.withdraw(withdrawn, why="it waited long enough")
    binder.withdraw(withdrawn, why="once more")  # counts once
    found = {(queue, outcome): counts for queue, outcome, counts in binder.wait_times.all()}
    assert set(found) == {("default", WaitOutcome.GRANTED), ("default", WaitOutcome.NOT_GRANTED)}
    granted_counts = found["default", WaitOutcome.GRANTED]
    assert dict(zip(BOUNDS_S, granted_counts.counts, strict=False)) == {b: int(b == 15) for b in BOUNDS_S}
    assert granted_counts.total == pytest.approx(15)
    assert found["default", WaitOutcome.NOT_GRANTED].counts == [0] * len(BOUNDS_S) + [1]


def test_waiting_times_are_kept_of_a_bounded_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_times, "KEYS_MAX", 10)
    times = wait_times.WaitTimes()
    for number in range(100):
        times.add(f"q{number}", WaitOutcome.GRANTED, 1)
    assert [queue for queue, _, _ in times.all()] == [f"q{number}" for number in range(90, 100)]
