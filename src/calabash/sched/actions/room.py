"""The room that gangs are placed in: the cluster and its engine, minus what reservations hold.

A ``ClusterRoom`` answers ``choose`` with the engine's best place. While nodes are held for reserved gangs they are
cordoned for the rest of the cycle, so that the engine looks elsewhere at full speed; only when it finds nothing are
the held nodes tried one by one, and a place there is taken only if it delays no reservation (``reservation.Held``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from calabash.model.errors import CalabashError
from calabash.sched.actions.reserve import HeldNodes
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.choose import choose
from calabash.sched.cluster.fit import Compiled
from calabash.sched.cluster.shape import NodePlacement, Shape

HELD_NODES_TRIED_MAX = 32
Admit = Callable[[Shape, NodePlacement], bool]


class Decider(Protocol):
    """What is needed of the engine."""

    def best(self, shape: Shape) -> NodePlacement | None:
        """The best place by the policy; nothing is taken and nothing is learned."""
        ...

    def observe(self, shape: Shape) -> None:
        """A request of this shape has arrived."""
        ...


class ClusterRoom:
    """``gangs.Room`` over the resident arrays.

    Attributes:
        ends_at_s: when what is being placed is expected to end; None when unknown. Set by the caller per gang.
        admitting: whether held nodes are tried at all. Only plain placing does: the test of a held node needs a board
            that agrees with the book, which searches for victims and moves do not keep.
    """

    def __init__(self, cluster: Cluster, engine: Decider) -> None:
        self.cluster = cluster
        self.engine = engine
        self.ends_at_s: float | None = None
        self.admitting = True
        self._compiled: dict[Shape, Compiled] = {}
        self._held: HeldNodes | None = None
        self._cordoned: list[int] = []

    def choose(self, shape: Shape) -> NodePlacement | None:
        placement = self.engine.best(shape)
        if placement is None and self._held is not None and self.admitting:
            for node in self._cordoned[:HELD_NODES_TRIED_MAX]:
                placement = self._choose_held(shape, node)
                if placement is not None:
                    break
        return placement

    def choose_on(self, shape: Shape, node: int) -> NodePlacement | None:
        if node in self._cordoned:
            return self._choose_held(shape, node) if self.admitting else None
        return choose(self.compiled(shape), node)

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        self.cluster.place(shape, placement)

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        self.cluster.release(shape, placement)

    def fits_at(self, shape: Shape, placement: NodePlacement) -> bool:
        try:
            self.cluster.place(shape, placement)
        except CalabashError:
            return False
        self.cluster.release(shape, placement)
        return True

    def compiled(self, shape: Shape) -> Compiled:
        found = self._compiled.get(shape)
        if found is None:
            found = self._compiled[shape] = Compiled(self.cluster, shape)
        found.renew()
        return found

    def hold(self, held: HeldNodes) -> None:
        """Keep the engine off the held nodes until ``unhold``."""
        self.unhold()
        self._held = held
        self._cordoned = [node for node in held.nodes if self.cluster.schedulable[node]]
        for node in self._cordoned:
            self.cluster.cordon(node)

    def unhold(self) -> None:
        for node in self._cordoned:
            self.cluster.cordon(node, schedulable=True)
        self._cordoned = []
        self._held = None

    def _choose_held(self, shape: Shape, node: int) -> NodePlacement | None:
        held, cordoned, self._held = self._held, self._cordoned, None
        self._cordoned = [other for other in cordoned if other != node]
        self.cluster.cordon(node, schedulable=True)
        placement = choose(self.compiled(shape), node)
        if placement is not None and held is not None and not held.admits(shape, placement, self.ends_at_s):
            placement = None
        self.cluster.cordon(node)
        self._held, self._cordoned = held, cordoned
        return placement
