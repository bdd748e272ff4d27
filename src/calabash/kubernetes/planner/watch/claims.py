"""Convert changes of claims, device classes and node devices to claim events of the core."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from calabash.adapters.kube import Kind, Mirror, MirrorChange
from calabash.adapters.kube.objects.claims import DEVICE_CLASS, RESOURCE_CLAIM, DeviceClass, ResourceClaim
from calabash.adapters.kube.objects.resources import GpuNode
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.watch.facts_from_claims import claim_facts
from calabash.kubernetes.planner.watch.facts_from_objects import gpu_node_facts
from calabash.model.device import Device

CLAIM_KINDS = (("classes", DEVICE_CLASS), ("claims", RESOURCE_CLAIM))

Emit = Callable[[Callable[[Core], object]], None]
LeaveOut = Callable[[Kind[Any], Any], AbstractContextManager[None]]
"""Return a context manager that skips an object, of the given kind, on which its block fails."""


class ClaimEvents:
    """Claims and device classes as last seen.

    The facts of a claim depend on other objects: its request on device classes, its allocated devices on its node's
    GpuNode. So a claim event is also emitted when one of these changes.

    Args:
        lock: the core's lock; also guards the claims.
        emit: passes an event to the core; does nothing while another planner leads.
        gpu_nodes: mirror of the GpuNodes.
        now_s: clock of the planner in seconds.
    """

    def __init__(
        self,
        lock: threading.RLock,
        emit: Emit,
        gpu_nodes: Mirror[GpuNode],
        now_s: Callable[[], float],
    ) -> None:
        self._lock = lock
        self._emit = emit
        self._gpu_nodes = gpu_nodes
        self._now_s = now_s
        self._classes: dict[str, DeviceClass] = {}
        self._claims: dict[tuple[str, str], ResourceClaim] = {}
        self._by_node: dict[str, dict[tuple[str, str], None]] = {}

    def class_changed(self, change: MirrorChange[DeviceClass]) -> None:
        """Update a device class, and emit an event for each claim that names it."""
        found = change.after or change.before
        if found is None:
            return
        name = found.metadata.name
        with self._lock:
            if change.after is None:
                self._classes.pop(name, None)
            else:
                self._classes[name] = found
            for claim in [one for one in self._claims.values() if name in _classes_of(one)]:
                self._emit_claim(claim)

    def claim_changed(self, change: MirrorChange[ResourceClaim]) -> None:
        """Update a claim and emit its event."""
        before, after = change.before, change.after
        with self._lock:
            if before is not None:
                key = (before.metadata.namespace, before.metadata.name)
                self._claims.pop(key, None)
                self._index(before, there=False)
                if after is None:
                    self._emit(lambda core: core.claim_deleted(*key, self._now_s()))
            if after is not None:
                self._claims[after.metadata.namespace, after.metadata.name] = after
                self._index(after, there=True)
                self._emit_claim(after)

    def devices_changed(self, node: str) -> None:
        """Emit an event for each claim that is allocated on a node whose devices have changed."""
        with self._lock:
            for key in list(self._by_node.get(node, ())):
                self._emit_claim(self._claims[key])

    def emit_all(self, core: Core, leave_out: LeaveOut) -> None:
        """Pass all claims to a new core. Each is converted within ``leave_out``, which skips claims that fail.

        The caller holds the lock.
        """
        for claim in list(self._claims.values()):
            with leave_out(RESOURCE_CLAIM, claim):
                core.claim_changed(claim_facts(claim, self._classes, self._devices_of), self._now_s())

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _emit_claim(self, claim: ResourceClaim) -> None:
        self._emit(lambda core: core.claim_changed(claim_facts(claim, self._classes, self._devices_of), self._now_s()))

    def _devices_of(self, node: str) -> Sequence[Device]:
        found = self._gpu_nodes.get(node)
        return [one.device for one in gpu_node_facts(found).devices] if found is not None else []

    def _index(self, claim: ResourceClaim, *, there: bool) -> None:
        allocation = claim.status.allocation
        key = (claim.metadata.namespace, claim.metadata.name)
        for result in allocation.devices.results if allocation is not None else ():
            if result.driver == DRIVER and there:
                self._by_node.setdefault(result.pool, {})[key] = None
            elif result.driver == DRIVER:
                self._by_node.get(result.pool, {}).pop(key, None)


def _classes_of(claim: ResourceClaim) -> set[str]:
    found: set[str] = set()
    for request in claim.spec.devices.requests:
        ways = [request.exactly, *request.first_available]
        found |= {way.device_class_name for way in ways if way is not None}
    return found
