"""The scheduler is built anew when the figures of a card change; what is just being granted stays what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.binder.local.test_machine import device

from calabash.binder.local.machine import Start
from calabash.binder.local.requests import Requester, WaitingRequest
from calabash.binder.local.tracking import Tracker
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import NodeName
from calabash.model.request import AllocationId, GpuRequest
from calabash.sched import Options, QueueSpec
from calabash_testing.clock import VirtualClock

CHANGED = replace(device(1), replicas=3)


def waits(name: str) -> WaitingRequest:
    request = GpuRequest(memory_mib=30_000, core_percent=60)
    requester = Requester(uid=1, user="ann")
    return WaitingRequest(id=AllocationId(name), request=request, requester=requester, command=(), created_at=0.0)


def bound(tracker: Tracker, waiting: WaitingRequest) -> AllocationRecord:
    """Return the record of a decided request, as the agent has it from the beginning of the grant."""
    (start,) = [d for d in tracker.decide() if isinstance(d, Start)]
    return AllocationRecord(
        id=waiting.id, state=AllocationState.GRANTED, request=waiting.request, placement=start.placement, uid=1
    )


@pytest.fixture
def tracker() -> Tracker:
    queues = [QueueSpec(name="default")]
    made = [device(0), device(1)]
    return Tracker(NodeName("here"), made, [], queues=lambda: queues, options=Options(), clock=VirtualClock())


def test_grant_during_a_device_change_is_counted_once(tracker: Tracker) -> None:
    first = waits("first")
    tracker.submit(first)
    record = bound(tracker, first)
    assert not tracker.update_devices([device(0), CHANGED], lambda: [record]), "the scheduler is built anew"
    assert not first.answer.done(), "nobody is told anything yet"
    tracker.set_running(record)
    for name in ("second", "third"):
        tracker.submit(waits(name))
    assert [d.id for d in tracker.decide() if isinstance(d, Start)] == ["second"], "two cards have room for two of them"
    assert tracker.update_devices([device(0), CHANGED], list), "it has ended"
    assert [d.id for d in tracker.decide() if isinstance(d, Start)] == ["third"]


def test_failed_grant_during_a_device_change_waits_with_its_age(tracker: Tracker) -> None:
    first = waits("first")
    tracker.submit(first)
    record = bound(tracker, first)
    assert not tracker.update_devices([device(0), CHANGED], lambda: [record])
    assert tracker.update_devices([device(0), CHANGED], list), "the agent has it no more: its grant has failed"
    tracker.unbind(first.id)
    assert not first.answer.done()
    assert [d.id for d in tracker.decide() if isinstance(d, Start)] == ["first"]
