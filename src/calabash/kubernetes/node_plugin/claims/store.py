"""Store of the prepared claims of a node: the pods that may use each claim, and whether it is deleted or deallocated.

The store may be read from any thread; a read waits for no input or output. It is updated when a claim is prepared, and
by the reconciler. Nothing is known of a claim that was not read since the agent started: its allocation is kept,
because any pod may be using it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from calabash.adapters.kube.objects.claims import ResourceClaim
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.model.request import AllocationId
from calabash.node.membership.container import claim_allocation

_POD = "pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownClaim:
    """A claim as it was last read.

    Args:
        namespace, name, uid: identity of the claim object.
        pods: names of the pods that may use the claim (``status.reservedFor``), by UID.
        over: True if the claim is deleted, or no device of this driver is allocated to it any more.
    """

    namespace: str
    name: str
    uid: str
    pods: dict[str, str] = field(default_factory=dict)
    over: bool = False


def known_claim(claim: ResourceClaim) -> KnownClaim:
    """Return the facts about a claim object that the store keeps."""
    allocation = claim.status.allocation
    ours = allocation is not None and any(r.driver == DRIVER for r in allocation.devices.results)
    return KnownClaim(
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        pods={user.uid: user.name for user in claim.status.reserved_for if user.resource == _POD},
        over=not ours,
    )


class ClaimStore:
    """Prepared claims of one node, by the ID of their allocation on the node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[AllocationId, KnownClaim] = {}

    def update(self, claim: KnownClaim) -> None:
        """Insert or update a claim that was prepared or read."""
        with self._lock:
            self._known[claim_allocation(claim.uid)] = claim

    def mark_ended(self, uid: str) -> None:
        """Record that a claim was deleted, possibly replaced by another claim of the same name."""
        with self._lock:
            name = claim_allocation(uid)
            known = self._known.get(name) or KnownClaim(namespace="", name="", uid=uid)
            self._known[name] = KnownClaim(namespace=known.namespace, name=known.name, uid=uid, over=True)

    def remove(self, uid: str) -> None:
        """Delete a claim from the store."""
        with self._lock:
            self._known.pop(claim_allocation(uid), None)

    def find(self, allocation: AllocationId) -> KnownClaim | None:
        """Return the claim of an allocation; None if the store does not have it."""
        with self._lock:
            return self._known.get(allocation)

    def users(self, allocation: AllocationId) -> Collection[str] | None:
        """Return the UIDs of the pods that may use an allocation; None if unknown, or if the claim is over."""
        known = self.find(allocation)
        return None if known is None or known.over else known.pods.keys()

    def holds(self, allocation: AllocationId) -> bool:
        """Return True if the allocation must be kept: its claim is not known to be deleted or deallocated."""
        known = self.find(allocation)
        return known is None or not known.over
