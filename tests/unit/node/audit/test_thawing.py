"""A stopped process may hold what a driver waits for: it is continued while the driver does not answer."""

from __future__ import annotations

from typing import Any, cast

from calabash.model.request import AllocationId
from calabash.node.audit.auditor import Auditor
from calabash.node.audit.compare import Throttle
from calabash.node.audit.loop import PATIENCE_NS, NodeAudit
from calabash_testing.clock import VirtualClock

STOPPED, RUNNING = AllocationId("stopped"), AllocationId("running")


class Members:
    """Processes of allocations; records which were stopped and continued."""

    def __init__(self, done: list[tuple[str, bool]]) -> None:
        self._done = done

    def allocation_of(self, pid: int) -> AllocationId | None:
        return None

    def freeze(self, allocation: AllocationId, frozen: bool) -> None:
        self._done.append((allocation, frozen))


def _auditor(done: list[tuple[str, bool]]) -> Auditor:
    auditor = Auditor(
        cast("Any", None),
        Members(done),
        freezes=True,
        report=lambda *_: None,
    )
    auditor._throttles = {STOPPED: Throttle(frozen=True), RUNNING: Throttle()}
    return auditor


def test_only_stopped_allocations_are_thawed() -> None:
    done: list[tuple[str, bool]] = []
    _auditor(done).thaw_for_driver()
    assert done == [(STOPPED, False)]


def test_allocations_are_thawed_only_if_a_driver_takes_too_long() -> None:
    done: list[tuple[str, bool]] = []
    audit = NodeAudit.__new__(NodeAudit)
    audit._clock = clock = VirtualClock()
    audit._auditor = _auditor(done)
    audit._asking_since_ns = 0
    clock.advance(10)
    audit.thaw_for_driver()
    assert done == []
    audit._asking_since_ns = clock.monotonic_ns()
    clock.advance(PATIENCE_NS / 2e9)
    audit.thaw_for_driver()
    assert done == []
    clock.advance(PATIENCE_NS / 1e9)
    audit.thaw_for_driver()
    assert done == [(STOPPED, False)]
