"""Transactions of placements: all changes since a mark can be rolled back, so what-if questions need no copy.

Members of a gang are placed one after another on the resident arrays. If one does not fit, the log is undone in reverse order,
which restores the arrays exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy.typing as npt

from calabash.sched.cluster.columns import Bools, Ints
from calabash.sched.cluster.domains import Domains
from calabash.sched.cluster.shape import NodePlacement, Shape


class Placer(Protocol):
    """Operations on the cluster that actions need: choosing, taking and releasing placements."""

    def domains(self) -> Domains:
        """Return the domains of the network to which the nodes belong."""
        ...

    def choose(self, shape: Shape) -> NodePlacement | None:
        """Return the best placement for the shape, without taking it; None if it does not fit."""
        ...

    def choose_on(self, shape: Shape, node: int) -> NodePlacement | None:
        """Return the best placement on one node, without taking it; None if the shape does not fit there."""
        ...

    def choose_among(self, shape: Shape, nodes: Sequence[int]) -> NodePlacement | None:
        """Return the best placement on some nodes, without taking it; None if the shape fits on none of them."""
        ...

    def count(self, shape: Shape) -> tuple[Ints, bool]:
        """Return for each node the number of requests of the shape that fit there, and True if the numbers are exact.

        Numbers that are not exact are upper bounds.
        """
        ...

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        """Take a placement."""
        ...

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        """Release a placement."""
        ...

    def restore(self, shape: Shape, placement: NodePlacement) -> None:
        """Take a released placement again, even if modes or MIG instances of its devices were changed since it was taken."""
        ...

    def if_idle(self, shape: Shape, nodes: Sequence[int]) -> tuple[Bools, Ints]:
        """Return a mask of the devices that would serve the shape if idle, and the number of placements on each device.

        Both have one row per node in ``nodes`` and one column per device.
        """
        ...

    def device_users(self) -> npt.NDArray[Any]:
        """Return the number of placements on each device, by row of the node and index of the device.

        The array is a view of the resident one and must not be changed.
        """
        ...

    def nodes_for(self, shape: Shape) -> Ints:
        """Return the rows of the nodes where the shape fits now."""
        ...

    def least_contended(self, shape: Shape, others: Sequence[Shape], count: int) -> Ints:
        """Return at most ``count`` of the nodes where the shape fits.

        Nodes where the fewest of the other shapes fit come first, and of equal nodes the best by the policy.
        """
        ...

    def placements_on(self, shape: Shape, node: int, count: int) -> Iterator[NodePlacement]:
        """Yield at most ``count`` placements on a node that differ in the states of their devices, the best one first."""
        ...

    def state_of(self, node: int, shapes: Sequence[Shape]) -> Hashable:
        """Return a key that is equal for nodes that are interchangeable for the shapes."""
        ...

    def fits_at(self, shape: Shape, placement: NodePlacement) -> bool:
        """Return True if exactly this placement is free."""
        ...


class Transaction:
    """A ``Placer`` with a log: all changes since a mark can be rolled back.

    Args:
        rows_of: returns the rows of the nodes where placements of a group are, by the key of the group. Placements that
            are restricted to the domain of a group need it.

    Attributes:
        placer: chooses placements.
        changes: number of committed changes, by node.
    """

    def __init__(self, placer: Placer, rows_of: Callable[[Hashable], Sequence[int]] | None = None) -> None:
        self.placer = placer
        self.rows_of = rows_of or _no_rows
        self.changes: dict[int, int] = {}
        self._log: list[tuple[bool, Shape, NodePlacement]] = []

    @contextmanager
    def choosing_with(self, placer: Placer) -> Iterator[None]:
        """Choose placements with another placer of the same cluster within the context."""
        before, self.placer = self.placer, placer
        try:
            yield
        finally:
            self.placer = before

    def mark(self) -> int:
        """Return the current position in the log, for ``rollback``."""
        return len(self._log)

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        self.placer.place(shape, placement)
        self._log.append((True, shape, placement))

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        self.placer.release(shape, placement)
        self._log.append((False, shape, placement))

    def rollback(self, mark: int) -> None:
        """Undo all changes since ``mark``, a position in the log that the method ``mark`` returned."""
        while len(self._log) > mark:
            placed, shape, placement = self._log.pop()
            if placed:
                self.placer.release(shape, placement)
            else:
                self.placer.restore(shape, placement)

    def nodes_since(self, mark: int) -> set[int]:
        """Return the rows of the nodes that were changed since ``mark``, a position in the log."""
        return {placement.node for _, _, placement in self._log[mark:]}

    def commit(self) -> None:
        """Make all changes permanent, and count them in ``changes``."""
        for _, _, placement in self._log:
            self.changes[placement.node] = self.changes.get(placement.node, 0) + 1
        self._log.clear()


def _no_rows(key: Hashable) -> Sequence[int]:
    del key
    return ()
