"""What this node knows of the claims that it has prepared: who may use them, and whether they are over.

It is asked from any thread and never waits; it is told when a claim is prepared, and by whoever asks the API server now and
then. A claim of which nobody has heard since the agent began is kept, and any pod may be using it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from calabash.adapters.kube.objects.claims import ResourceClaim
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.model.request import AllocationId
from calabash.node.membership.container import claim_allocation

_POD = "pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownClaim:
    """A claim as it was last seen. ``pods``: UID -> name of those that may use it. ``over``: it is gone, or nothing of ours is
    allocated to it any more."""

    namespace: str
    name: str
    uid: str
    pods: dict[str, str] = field(default_factory=dict)
    over: bool = False


def known_claim(claim: ResourceClaim) -> KnownClaim:
    """What is remembered of a claim."""
    allocation = claim.status.allocation
    ours = allocation is not None and any(r.driver == DRIVER for r in allocation.devices.results)
    return KnownClaim(
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        pods={user.uid: user.name for user in claim.status.reserved_for if user.resource == _POD},
        over=not ours,
    )


class ClaimBook:
    """Claims of one node, by the allocation that each has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[AllocationId, KnownClaim] = {}

    def saw(self, claim: KnownClaim) -> None:
        """It was prepared, or looked at."""
        with self._lock:
            self._known[claim_allocation(claim.uid)] = claim

    def ended(self, uid: str) -> None:
        """It is gone, or another has its name."""
        with self._lock:
            name = claim_allocation(uid)
            known = self._known.get(name) or KnownClaim(namespace="", name="", uid=uid)
            self._known[name] = KnownClaim(namespace=known.namespace, name=known.name, uid=uid, over=True)

    def forget(self, uid: str) -> None:
        """Nothing of it is left here."""
        with self._lock:
            self._known.pop(claim_allocation(uid), None)

    def of(self, allocation: AllocationId) -> KnownClaim | None:
        """The claim that has it."""
        with self._lock:
            return self._known.get(allocation)

    def users(self, allocation: AllocationId) -> Collection[str] | None:
        """UIDs of the pods that may use it; None: it is not known. One that is over may still be used by any."""
        known = self.of(allocation)
        return None if known is None or known.over else known.pods.keys()

    def holds(self, allocation: AllocationId) -> bool:
        """Whether it is kept."""
        known = self.of(allocation)
        return known is None or not known.over

    def only(self, allocations: Iterable[AllocationId]) -> None:
        """Forget all others."""
        kept = set(allocations)
        with self._lock:
            self._known = {name: claim for name, claim in self._known.items() if name in kept}
