"""Selection of whole devices to free by eviction: on each node the set of devices that costs the fewest slices.

Theory of operation. A device can be freed if all its users are eligible units. Freeing a set of devices evicts every unit that
has a slice on one of them, with all of the unit's slices, so units that span several devices make the costs of the devices
depend on each other. Two lower bounds do not have this dependence. The first is the sum over the devices of each unit's slices
divided by the number of the node's devices that the unit is on, which counts no unit more than once. The second is the cost of
the most expensive of the cheapest devices, with all slices of its units. Nodes are tried in the order of the larger bound, and
the search ends when the bound of the next node exceeds the cost of the best set found. On one node all sets of devices are
compared if there are at most ``SETS_MAX``; otherwise the devices with the smallest bounds are taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from calabash.sched.actions.unit_pool import UnitPool
from calabash.sched.cluster.columns import Ints
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.transaction import Placer
from calabash.sched.queues.gang import Unit
from calabash.sched.queues.unit_table import UNRANKED

SETS_MAX = 256
NODES_AT_ONCE = 64
_NEVER = 1 << 40  # placements on a device that cannot serve


def slices_of(units: Iterable[Unit]) -> int:
    """Return the number of slices that some units have of all devices; a whole device counts as one slice."""
    return sum(unit.slices for unit in units)


class FreeableDevices:
    """Devices that can be freed for one shape of whole devices by evicting units of a pool.

    Bounds are cached by node, and recomputed for nodes where the units or the users of devices have changed.
    """

    def __init__(self, placer: Placer, shape: Shape, pool: UnitPool) -> None:
        self._placer = placer
        self._pool = pool
        self._count = shape.gpu_count
        self._serves, self._users = placer.if_idle(shape, range(len(pool.first)))
        self._versions = pool.versions.copy()
        self._possible = np.zeros(len(pool.first), np.bool_)
        self._least: Ints = np.zeros(len(pool.first), np.int64)
        self._early: Ints = np.zeros(len(pool.first), np.int64)
        self._on: dict[int, dict[int, list[Unit]]] = {}
        self._renew(pool.nodes())

    def nodes(self) -> Iterator[tuple[int, int]]:
        """Yield the nodes where enough devices can be freed, each with a lower bound of the slices to evict for them.

        The nodes with the least expected cost come first: the bound, or the number of placements on the devices if that
        is larger. Nodes of equal cost are sorted by the eviction order of their first unit.
        """
        users, versions = self._placer.device_users(), self._pool.versions
        changed = np.flatnonzero((versions != self._versions) | (users != self._users).any(axis=1))
        if len(changed):
            self._users[changed], self._versions[changed] = users[changed], versions[changed]
            self._renew(changed)
        nodes = np.flatnonzero(self._possible)
        order = nodes[np.lexsort((self._pool.first[nodes], self._early[nodes]))]  # stable, and nodes are in order
        for start in range(0, len(order), NODES_AT_ONCE):
            chosen = order[start : start + NODES_AT_ONCE]
            yield from zip(chosen.tolist(), self._least[chosen].tolist(), strict=True)

    def _renew(self, nodes: Ints) -> None:
        """Recompute the lower bounds of some nodes, because their units or the users of their devices have changed."""
        self._possible[nodes] = False
        nodes = nodes[self._pool.first[nodes] < UNRANKED]
        if self._users.shape[1] < self._count or not len(nodes):
            return
        pool, last = self._pool, self._count - 1
        freeable = self._serves[nodes] & (self._users[nodes] == pool.evictable_users[nodes])
        enough = np.count_nonzero(freeable, axis=1) >= self._count
        nodes, freeable = nodes[enough], freeable[enough]
        if not len(nodes):
            return
        shares = np.sort(np.where(freeable, pool.shares[nodes], np.inf), axis=1)[:, : self._count].sum(axis=1)
        largest = np.partition(np.where(freeable, pool.slices[nodes], _NEVER), last, axis=1)[:, last]
        least = np.maximum(np.ceil(shares - 1e-9).astype(np.int64), largest)
        users = np.where(self._serves[nodes], self._users[nodes], _NEVER)
        placements = np.partition(users, last, axis=1)[:, : self._count].sum(axis=1)
        self._least[nodes] = least
        self._early[nodes] = np.maximum(least, np.where(placements > 0, np.maximum(placements, pool.fewest[nodes]), 0))
        self._possible[nodes] = True

    def cheapest(self, node: int) -> list[Unit]:
        """Return the units to evict for the cheapest set of devices of a node."""
        bounds = self._devices(node, self._serves[node].tolist(), self._users[node].tolist())
        order = sorted(bounds, key=lambda device: (bounds[device], device))
        single_unit = len(self._pool.on(node)) == 1  # the devices that the unit does not use come first then
        if single_unit or not 1 < math.comb(len(order), self._count) <= SETS_MAX:
            return self._victims(node, order[: self._count])
        return min(
            (self._victims(node, chosen) for chosen in itertools.combinations(order, self._count)), key=self._key
        )

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _devices(self, node: int, serves: Sequence[bool], users: Sequence[int]) -> dict[int, float]:
        """Return a lower bound of the slices to evict for each device that is free or can be freed, on one node.

        Args:
            serves: for each device, True if it would serve the shape when idle.
            users: number of placements on each device.
        """
        on: dict[int, list[Unit]] = {}
        evictable_users: dict[int, int] = {}
        bounds: dict[int, float] = {}
        for unit in self._pool.on(node):
            touched: set[int] = set()
            for member in unit.members:
                if member.placement.node == node:
                    touched.update(member.placement.devices)
                    for device in member.placement.devices:
                        evictable_users[device] = evictable_users.get(device, 0) + 1
            for device in touched:
                on.setdefault(device, []).append(unit)
                bounds[device] = bounds.get(device, 0.0) + unit.slices / len(touched)
        self._on[node] = on
        freeable = [d for d, serving in enumerate(serves) if serving and users[d] == evictable_users.get(d, 0)]
        return {device: bounds.get(device, 0.0) for device in freeable}

    def _victims(self, node: int, devices: Iterable[int]) -> list[Unit]:
        """Return the units to evict for a set of devices, in eviction order.

        If the core of a gang is evicted, the surplus members of the gang are evicted too.
        """
        on = self._on[node]
        found: dict[str, Unit] = {}
        for device in devices:
            for unit in on.get(device, ()):
                found[_unit_id(unit)] = unit
                for other in self._pool.surplus(unit.gang) if unit.core else ():
                    found[_unit_id(other)] = other
        return sorted(found.values(), key=lambda unit: unit.order)

    def _key(self, units: Sequence[Unit]) -> tuple[object, ...]:
        orders = sorted((unit.order for unit in units), reverse=True)
        return (slices_of(units), sum(unit.amount.gpu_milli for unit in units), orders)


def _unit_id(unit: Unit) -> str:
    return unit.members[0].request.id
