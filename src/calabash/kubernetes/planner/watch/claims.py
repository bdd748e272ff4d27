"""What the planner knows of claims: from claims, their classes and the devices of nodes to events of the core."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from calabash.adapters.kube import Kind, MirrorChange
from calabash.adapters.kube.objects.claims import DEVICE_CLASS, RESOURCE_CLAIM, DeviceClass, ResourceClaim
from calabash.adapters.kube.objects.resources import GpuNode
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.watch.facts_from_claims import claim_facts
from calabash.kubernetes.planner.watch.facts_from_objects import gpu_node_facts
from calabash.model.device import Device

CLAIM_KINDS = (("classes", DEVICE_CLASS), ("claims", RESOURCE_CLAIM))

Tell = Callable[[Callable[[Core], object]], None]
LeaveOut = Callable[[Kind[Any], Any], AbstractContextManager[None]]
"""Begins a block whose failure concerns one object of a kind."""


class KnownClaims:
    """Turns changes into events. What claims ask follows their classes; what they have, the devices of their nodes.

    Args:
        lock: guards what is known; that of the core, for which it is read.
        tell: has the core told, when there is one.
        node: a node's devices as they were last told.
    """

    def __init__(
        self,
        lock: threading.RLock,
        tell: Tell,
        node: Callable[[str], GpuNode | None],
        now_s: Callable[[], float],
    ) -> None:
        self._lock = lock
        self._tell = tell
        self._node = node
        self._now_s = now_s
        self._classes: dict[str, DeviceClass] = {}
        self._claims: dict[tuple[str, str], ResourceClaim] = {}
        self._on: dict[str, dict[tuple[str, str], None]] = {}

    def device_class(self, change: MirrorChange[DeviceClass]) -> None:
        """A class came, changed or went: its claims may ask for something else."""
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
                self._told(claim)

    def claim(self, change: MirrorChange[ResourceClaim]) -> None:
        """A claim came, changed or went."""
        before, after = change.before, change.after
        with self._lock:
            if before is not None:
                key = (before.metadata.namespace, before.metadata.name)
                self._claims.pop(key, None)
                self._stand(before, there=False)
                if after is None:
                    self._tell(lambda core: core.claim_gone(*key, self._now_s()))
            if after is not None:
                self._claims[after.metadata.namespace, after.metadata.name] = after
                self._stand(after, there=True)
                self._told(after)

    def devices(self, node: str) -> None:
        """A node's devices were told: what claims have of them can be said."""
        with self._lock:
            for key in list(self._on.get(node, ())):
                self._told(self._claims[key])

    def tell_all(self, core: Core, leave_out: LeaveOut) -> None:
        """Tell a new core everything but claims on which this fails: each is told within ``leave_out``. The caller holds the
        lock."""
        for claim in list(self._claims.values()):
            with leave_out(RESOURCE_CLAIM, claim):
                core.claim(claim_facts(claim, self._classes, self._devices_of), self._now_s())

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _told(self, claim: ResourceClaim) -> None:
        self._tell(lambda core: core.claim(claim_facts(claim, self._classes, self._devices_of), self._now_s()))

    def _devices_of(self, node: str) -> Sequence[Device]:
        found = self._node(node)
        return [one.device for one in gpu_node_facts(found).devices] if found is not None else []

    def _stand(self, claim: ResourceClaim, *, there: bool) -> None:
        allocation = claim.status.allocation
        key = (claim.metadata.namespace, claim.metadata.name)
        for result in allocation.devices.results if allocation is not None else ():
            if result.driver == DRIVER and there:
                self._on.setdefault(result.pool, {})[key] = None
            elif result.driver == DRIVER:
                self._on.get(result.pool, {}).pop(key, None)


def _classes_of(claim: ResourceClaim) -> set[str]:
    found: set[str] = set()
    for request in claim.spec.devices.requests:
        ways = [request.exactly, *request.first_available]
        found |= {way.device_class_name for way in ways if way is not None}
    return found
