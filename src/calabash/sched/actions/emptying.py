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

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from calabash.sched.actions.unit_pool import UnitPool
from calabash.sched.cluster.board import Room
from calabash.sched.cluster.columns import Ints
from calabash.sched.cluster.shape import Shape
from calabash.sched.queues.gang import Unit
from calabash.sched.queues.unit_table import UNRANKED

SETS_MAX = 256
NODES_AT_ONCE = 64
_NEVER = 1 << 40  # placements on a device that cannot serve


def slices_of(units: Iterable[Unit]) -> int:
    """Return the number of slices that the units have, whole devices included."""
    return sum(unit.slices for unit in units)


class Emptying:
    """Devices of the nodes that the units of a pool are on, for one shape of whole devices.

    Bounds are kept by node, and computed anew for nodes where the units or what uses the devices have changed.
    """

    def __init__(self, room: Room, shape: Shape, pool: UnitPool) -> None:
        self._room = room
        self._pool = pool
        self._count = shape.gpu_count
        self._serves, self._users = room.if_idle(shape, range(len(pool.first)))
        self._versions = pool.versions.copy()
        self._possible = np.zeros(len(pool.first), np.bool_)
        self._least: Ints = np.zeros(len(pool.first), np.int64)
        self._early: Ints = np.zeros(len(pool.first), np.int64)
        self._on: dict[int, dict[int, list[Unit]]] = {}
        self._renew(pool.nodes())

    def nodes(self) -> Iterator[tuple[int, int]]:
        """Yield the nodes where enough devices can be freed, each with the fewest slices that may have to leave it.

        Nodes are in the order of the bounds, of equal ones the node first whose first unit goes first. A node is no earlier
        than by the number of placements on its devices.
        """
        users, versions = self._room.device_users(), self._pool.versions
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
        """Compute the bounds of some nodes."""
        self._possible[nodes] = False
        nodes = nodes[self._pool.first[nodes] < UNRANKED]
        if self._users.shape[1] < self._count or not len(nodes):
            return
        pool, last = self._pool, self._count - 1
        able = self._serves[nodes] & (self._users[nodes] == pool.leaving[nodes])
        enough = np.count_nonzero(able, axis=1) >= self._count
        nodes, able = nodes[enough], able[enough]
        if not len(nodes):
            return
        shares = np.sort(np.where(able, pool.shares[nodes], np.inf), axis=1)[:, : self._count].sum(axis=1)
        largest = np.partition(np.where(able, pool.slices[nodes], _NEVER), last, axis=1)[:, last]
        least = np.maximum(np.ceil(shares - 1e-9).astype(np.int64), largest)
        users = np.where(self._serves[nodes], self._users[nodes], _NEVER)
        placements = np.partition(users, last, axis=1)[:, : self._count].sum(axis=1)
        self._least[nodes] = least
        self._early[nodes] = np.maximum(least, np.where(placements > 0, np.maximum(placements, pool.fewest[nodes]), 0))
        self._possible[nodes] = True

    def cheapest(self, node: int) -> list[Unit]:
        """Return the units that must leave the best set of devices of a node."""
        bounds = self._devices(node, self._serves[node].tolist(), self._users[node].tolist())
        order = sorted(bounds, key=lambda device: (bounds[device], device))
        alone = len(self._pool.on(node)) == 1  # then the devices without the unit come first
        if alone or not 1 < math.comb(len(order), self._count) <= SETS_MAX:
            return self._leaving(node, order[: self._count])
        return min(
            (self._leaving(node, chosen) for chosen in itertools.combinations(order, self._count)), key=self._key
        )

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _devices(self, node: int, serves: Sequence[bool], users: Sequence[int]) -> dict[int, float]:
        """Lower bounds by device, for the devices of a node that are free or can be freed."""
        on: dict[int, list[Unit]] = {}
        leaving: dict[int, int] = {}
        bounds: dict[int, float] = {}
        for unit in self._pool.on(node):
            touched: set[int] = set()
            for member in unit.members:
                if member.placement.node == node:
                    touched.update(member.placement.devices)
                    for device in member.placement.devices:
                        leaving[device] = leaving.get(device, 0) + 1
            for device in touched:
                on.setdefault(device, []).append(unit)
                bounds[device] = bounds.get(device, 0.0) + unit.slices / len(touched)
        self._on[node] = on
        able = [d for d, serving in enumerate(serves) if serving and users[d] == leaving.get(d, 0)]
        return {device: bounds.get(device, 0.0) for device in able}

    def _leaving(self, node: int, devices: Iterable[int]) -> list[Unit]:
        on = self._on[node]
        found: dict[str, Unit] = {}
        for device in devices:
            for unit in on.get(device, ()):
                found[_name(unit)] = unit
                for other in self._pool.surplus(unit.gang) if unit.core else ():
                    found[_name(other)] = other
        return sorted(found.values(), key=lambda unit: unit.order)

    def _key(self, units: Sequence[Unit]) -> tuple[object, ...]:
        orders = sorted((unit.order for unit in units), reverse=True)
        return (slices_of(units), sum(unit.amount.gpu_milli for unit in units), orders)


def _name(unit: Unit) -> str:
    return unit.members[0].request.id
