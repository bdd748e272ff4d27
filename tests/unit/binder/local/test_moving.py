"""A request that waits goes to another queue: it keeps its age, a gang stays together, and a refusal changes nothing."""

from __future__ import annotations

import pytest
from tests.unit.binder.local.test_machine import device

from calabash.binder.local.requests import Requester, WaitingRequest
from calabash.binder.local.tracking import Tracker
from calabash.binder.local.waiting import WaitingRequests
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName
from calabash.sched import Options, QueueSpec
from calabash_testing.clock import VirtualClock


class Line:
    """One device, and the queues ``day`` and ``night``."""

    def __init__(self, window: int = 8) -> None:
        self.clock = VirtualClock()
        self.tracker = Tracker(
            NodeName("here"),
            [device(0)],
            [],
            queues=lambda: [QueueSpec(name=name) for name in ("default", "day", "night")],
            options=Options(preempt=False),
            clock=self.clock,
        )
        self.waiting = WaitingRequests(self.tracker, window=window)

    def join(self, name: str, queue: str, *, gang: str = "") -> WaitingRequest:
        self.clock.advance(1.0)
        request = GpuRequest(queue=queue, mode=ModeName("exclusive"), gang=gang, gang_size=2 if gang else 1)
        made = WaitingRequest(
            id=AllocationId(name),
            request=request,
            requester=Requester(uid=1, user="ann"),
            command=(),
            created_at=self.clock.now_s(),
        )
        self.waiting.add(made, at_once=False)
        return made

    def move(self, waiting: WaitingRequest, queue: str, *, decided: bool = False) -> list[str]:
        return [str(w.id) for w in self.waiting.move(waiting, queue, decided=lambda _: decided)]

    def starts(self) -> list[str]:
        return [str(d.id) for d in self.tracker.decide() if hasattr(d, "placement")]


def test_moved_request_keeps_its_age_in_the_other_queue() -> None:
    line = Line()
    old = line.join("old", "day")
    line.join("young", "night")
    line.clock.advance(60)
    assert line.move(old, "night") == ["old"]
    assert old.request.queue == "night"
    assert line.starts() == ["old"], "of one queue the older goes first"


def test_gang_is_moved_as_a_whole() -> None:
    line = Line()
    members = [line.join(f"m{i}", "day", gang="g") for i in range(2)]
    assert line.move(members[1], "night") == ["m0", "m1"]
    assert {m.request.queue for m in members} == {"night"}
    assert members[0].gang_key == members[1].gang_key


@pytest.mark.parametrize("window", [1, 8])
def test_refused_move_changes_nothing(window: int) -> None:
    line = Line(window=window)
    first, second = line.join("first", "day"), line.join("second", "day")
    with pytest.raises(CalabashError):
        line.move(first, "nowhere")
    assert [w.request.queue for w in (first, second)] == ["day", "day"]
    assert [w.id for w in line.waiting.all()] == ["first", "second"]
    assert line.starts() == ["first"]


def test_placed_request_is_not_moved_to_another_queue() -> None:
    line = Line()
    first = line.join("first", "day")
    with pytest.raises(CalabashError) as refused:
        line.move(first, "night", decided=True)
    assert refused.value.reason is Reason.CONFLICT
    first.answer.cancel()
    with pytest.raises(CalabashError):
        line.move(first, "night")


def test_moved_request_admits_the_next_of_its_user() -> None:
    line = Line(window=1)
    first, second = line.join("first", "day"), line.join("second", "day")
    assert line.waiting.explain_wait(second) is not None
    line.move(first, "night")
    assert line.waiting.explain_wait(second) is None
