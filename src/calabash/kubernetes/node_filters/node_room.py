"""Accounting of the pods on one node: what they request, and what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from calabash.kubernetes.node_filters.demand import ANY_ADDRESS, PODS, Demand, HostPort
from calabash.kubernetes.node_filters.reasons import Filter, Refusal


class NodeRoom:
    """The pods on a node, and the sum of their requests and host ports.

    All methods take a time that depends on the number of resources and ports of one pod only. Sums are exact integers:
    a pod that is removed leaves no trace, in whatever order pods are added and removed.
    """

    def __init__(self) -> None:
        self._allocatable: Mapping[str, int] = {}
        self._pods: dict[str, Demand] = {}
        self._unreadable: dict[str, None] = {}
        self._used: Counter[str] = Counter()
        self._ports: dict[tuple[str, int], Counter[str]] = {}  # by protocol and number: pods by address

    def __len__(self) -> int:
        """Return the number of pods."""
        return len(self._pods) + len(self._unreadable)

    def set_allocatable(self, allocatable: Mapping[str, int]) -> None:
        """Set the amounts that all pods together can have, in the units of ``Demand``."""
        self._allocatable = allocatable

    def add(self, uid: str, demand: Demand | None) -> None:
        """Add a pod or update its requests.

        Args:
            uid: UID of the pod.
            demand: its requests; None if they cannot be read. The node then has room for no pod.
        """
        self.remove(uid)
        if demand is None:
            self._unreadable[uid] = None
            return
        self._pods[uid] = demand
        self._count(demand, 1)

    def remove(self, uid: str) -> None:
        """Remove a pod. Do nothing if the node does not have it."""
        self._unreadable.pop(uid, None)
        demand = self._pods.pop(uid, None)
        if demand is not None:
            self._count(demand, -1)

    def used(self, resource: str) -> int:
        """Return how much of a resource the pods request."""
        return self._used[resource]

    def free(self, resource: str) -> int:
        """Return how much of a resource is left; a negative number if the node has too many pods."""
        return self._allocatable.get(resource, 0) - (len(self) if resource == PODS else self._used[resource])

    def refusal(self, demand: Demand) -> Refusal | None:
        """Return the first reason for which one more pod does not fit; None if it does."""
        if self._unreadable:
            return Refusal(filter=Filter.UNREADABLE_POD, subject=next(iter(self._unreadable)))
        for port in demand.ports:
            if self._taken(port):
                return Refusal(filter=Filter.NODE_PORTS, subject=f"{port.protocol}/{port.number}")
        if self.free(PODS) < 1:
            return Refusal(filter=Filter.NODE_RESOURCES_FIT, subject=PODS, requested=1, free=self.free(PODS))
        for resource, amount in demand.amounts:
            free = self._allocatable.get(resource, 0) - self._used[resource]
            if amount > free:
                return Refusal(filter=Filter.NODE_RESOURCES_FIT, subject=resource, requested=amount, free=free)
        return None

    def _taken(self, port: HostPort) -> bool:
        addresses = self._ports.get((port.protocol, port.number))
        if addresses is None:
            return False
        return port.address == ANY_ADDRESS or ANY_ADDRESS in addresses or port.address in addresses

    def _count(self, demand: Demand, sign: int) -> None:
        for resource, amount in demand.amounts:
            self._used[resource] += sign * amount
            if not self._used[resource]:
                del self._used[resource]
        for port in demand.ports:
            key = (port.protocol, port.number)
            addresses = self._ports.setdefault(key, Counter())
            addresses[port.address] += sign
            if not addresses[port.address]:
                del addresses[port.address]
            if not addresses:
                del self._ports[key]
