"""Placing as a transaction: everything since a mark can be undone, so what-if questions cost no copy.

Members of a gang are placed one after another on the resident arrays; if one finds no room the log is played backwards, and
the arrays are what they were to the last integer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from calabash.sched.cluster.columns import Bools, Ints
from calabash.sched.cluster.shape import NodePlacement, Shape


class Room(Protocol):
    """What is needed of the cluster and its engine."""

    def choose(self, shape: Shape) -> NodePlacement | None:
        """The best place for the shape now, not taken yet."""
        ...

    def choose_on(self, shape: Shape, node: int) -> NodePlacement | None:
        """The same on one node."""
        ...

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        """Take the place."""
        ...

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        """Give the place back."""
        ...

    def restore(self, shape: Shape, placement: NodePlacement) -> None:
        """Take a place again that was given back, whatever has been said of it since it was taken first."""
        ...

    def if_idle(self, shape: Shape, nodes: Sequence[int]) -> tuple[Bools, Ints]:
        """Return which devices of the nodes would serve the shape if they were idle, and how many placements use each."""
        ...

    def device_users(self) -> npt.NDArray[Any]:
        """Return how many placements use each device, by node; a view."""
        ...

    def nodes_for(self, shape: Shape) -> Ints:
        """Return the nodes that have a place for the shape now."""
        ...

    def least_wanted(self, shape: Shape, others: Sequence[Shape], count: int) -> Ints:
        """Return at most ``count`` of these nodes: those first where the fewest of the other shapes have a place, of equal
        ones the best by the policy."""
        ...

    def places_on(self, shape: Shape, node: int, count: int) -> Iterator[NodePlacement]:
        """Yield at most ``count`` places on a node that differ in the state of their devices, the best by the policy first."""
        ...

    def state_of(self, node: int, shapes: Sequence[Shape]) -> Hashable:
        """Return what decides which of the shapes have a place on a node: equal for nodes that are interchangeable."""
        ...

    def fits_at(self, shape: Shape, placement: NodePlacement) -> bool:
        """Whether exactly this place could be taken now."""
        ...


class Board:
    """A ``Room`` with a log: everything since a mark can be undone.

    Attributes:
        changes: number of changes that were committed, by node.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.changes: dict[int, int] = {}
        self._log: list[tuple[bool, Shape, NodePlacement]] = []

    def mark(self) -> int:
        return len(self._log)

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        self.room.place(shape, placement)
        self._log.append((True, shape, placement))

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        self.room.release(shape, placement)
        self._log.append((False, shape, placement))

    def rollback(self, mark: int) -> None:
        while len(self._log) > mark:
            placed, shape, placement = self._log.pop()
            if placed:
                self.room.release(shape, placement)
            else:
                self.room.restore(shape, placement)

    def nodes_since(self, mark: int) -> set[int]:
        """Return the nodes where something was placed or released since a mark."""
        return {placement.node for _, _, placement in self._log[mark:]}

    def commit(self) -> None:
        for _, _, placement in self._log:
            self.changes[placement.node] = self.changes.get(placement.node, 0) + 1
        self._log.clear()
