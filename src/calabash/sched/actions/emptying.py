"""Whole devices to free by eviction: on each node those that the fewest slices must leave.

Theory of operation. A device can be freed if everything on it is an eligible unit. Freeing a set of devices evicts every unit
that has a slice on one of them, with all of its slices, so units that span devices make the costs of devices depend on each
other. A lower bound that does not is the sum over the devices of each unit's slices divided by the number of the node's
devices that it is on: a set of devices counts no unit more than once by it. Another is what must leave the last of the
devices that lose least, with all slices of its units. Nodes are tried in the order of the larger of both, and the search ends
when the bound of the next node exceeds the cost of the best set found. On a node all sets are compared while they are few
(``SETS_MAX``); the cheapest devices by the bound are taken where they are many.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from calabash.sched.cluster.board import Room
from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import GangKey
from calabash.sched.queues.gang import Unit

SETS_MAX = 256
_NEVER = 1 << 40  # placements on a device that cannot serve


def slices_of(units: Iterable[Unit]) -> int:
    """Return the number of slices that the units have, whole devices included."""
    return sum(unit.slices for unit in units)


class Emptying:
    """Devices of the nodes that the eligible units are on, for one shape of whole devices.

    Args:
        units: eligible units by node, those that go first at the beginning.
        surplus: surplus units by gang: they go with the core of their gang.
        rank: position of each unit, by the id of its first member, in the order in which units go.
    """

    def __init__(
        self,
        room: Room,
        shape: Shape,
        units: Mapping[int, Sequence[Unit]],
        surplus: Mapping[GangKey, Sequence[Unit]],
        rank: Mapping[str, int],
    ) -> None:
        self._count = shape.gpu_count
        self._units = units
        self._surplus = surplus
        self._rank = rank
        self._on: dict[int, dict[int, list[Unit]]] = {}
        self._bounds: dict[int, dict[int, float]] = {}
        self._leaving_slices: dict[int, dict[int, int]] = {}
        self._nodes = list(units)
        self._serves, self._users = room.if_idle(shape, self._nodes)

    def nodes(self) -> Iterator[tuple[int, int]]:
        """Yield the nodes where enough devices can be freed, each with the fewest slices that may have to leave it.

        Those with the fewest come first. A node is looked at in detail only when none that is left can have fewer by the number
        of placements on its devices.
        """
        waiting = self._estimated()
        heapq.heapify(waiting)
        while waiting:
            least, first, node, place = heapq.heappop(waiting)
            if place < 0:
                yield node, least
                continue
            devices = self._devices(node, self._units[node], self._serves[place].tolist(), self._users[place].tolist())
            if len(devices) >= self._count:
                self._bounds[node] = devices
                heapq.heappush(waiting, (self._least(node), first, node, -1))

    def _estimated(self) -> list[tuple[int, int, int, int]]:
        """Lower bounds for all nodes, the rank of their first units, the nodes, and their places in ``_nodes``."""
        if self._users.shape[1] < self._count:
            return []
        users = np.where(self._serves, self._users, _NEVER)
        fewest = np.partition(users, self._count - 1, axis=1)[:, : self._count].sum(axis=1).tolist()
        found = []
        for place, (node, placements) in enumerate(zip(self._nodes, fewest, strict=True)):
            if placements < _NEVER:
                here = self._units[node]
                least = max(placements, min(unit.slices for unit in here)) if placements else 0
                found.append((least, self._rank[_name(here[0])], node, place))
        return found

    def _least(self, node: int) -> int:
        """The fewest slices that may have to leave a node: by their shares, and by the device that must lose most."""
        shares = math.ceil(sum(sorted(self._bounds[node].values())[: self._count]) - 1e-9)
        return max(shares, sorted(self._leaving_slices[node].values())[self._count - 1])

    def cheapest(self, node: int) -> list[Unit]:
        """Return the units that must leave the best set of devices of a node."""
        bounds = self._bounds[node]
        order = sorted(bounds, key=lambda device: (bounds[device], device))
        if math.comb(len(order), self._count) > SETS_MAX:
            return self._leaving(node, order[: self._count])
        return min(
            (self._leaving(node, chosen) for chosen in itertools.combinations(order, self._count)), key=self._key
        )

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _devices(
        self, node: int, units: Sequence[Unit], serves: Sequence[bool], users: Sequence[int]
    ) -> dict[int, float]:
        """Lower bounds by device, for the devices of a node that are free or can be freed."""
        on: dict[int, list[Unit]] = {}
        leaving: dict[int, int] = {}
        bounds: dict[int, float] = {}
        slices_on: dict[int, int] = {}
        for unit in units:
            slices = unit.slices
            touched: set[int] = set()
            for member in unit.members:
                if member.placement.node == node:
                    touched.update(member.placement.devices)
                    for device in member.placement.devices:
                        leaving[device] = leaving.get(device, 0) + 1
            for device in touched:
                on.setdefault(device, []).append(unit)
                bounds[device] = bounds.get(device, 0.0) + slices / len(touched)
                slices_on[device] = slices_on.get(device, 0) + slices
        self._on[node] = on
        able = [d for d, serving in enumerate(serves) if serving and users[d] == leaving.get(d, 0)]
        self._leaving_slices[node] = {device: slices_on.get(device, 0) for device in able}
        return {device: bounds.get(device, 0.0) for device in able}

    def _leaving(self, node: int, devices: Iterable[int]) -> list[Unit]:
        on = self._on[node]
        found: dict[str, Unit] = {}
        for device in devices:
            for unit in on.get(device, ()):
                found[_name(unit)] = unit
                for other in self._surplus.get(unit.gang, ()) if unit.core else ():
                    found[_name(other)] = other
        return sorted(found.values(), key=lambda unit: unit.order)

    def _key(self, units: Sequence[Unit]) -> tuple[object, ...]:
        ranks = sorted((self._rank[_name(unit)] for unit in units), reverse=True)
        return (slices_of(units), sum(unit.amount.gpu_milli for unit in units), ranks)


def _name(unit: Unit) -> str:
    return unit.members[0].request.id
