"""The room that gangs are placed in: the resident cluster with the engine that knows its best places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calabash.model.errors import CalabashError
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.choose import choose
from calabash.sched.cluster.columns import Bools, Ints
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.fit import Compiled
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, NodePlacement, Shape


class ClusterRoom:
    """``board.Room`` over the resident arrays; what is cordoned takes nothing."""

    def __init__(self, cluster: Cluster, engine: Engine) -> None:
        self.cluster = cluster
        self.engine = engine
        self._compiled: dict[Shape, Compiled] = {}

    def choose(self, shape: Shape) -> NodePlacement | None:
        return self.engine.best(shape)

    def choose_on(self, shape: Shape, node: int) -> NodePlacement | None:
        return choose(self.compiled(shape), node)

    def choose_among(self, shape: Shape, nodes: Sequence[int]) -> NodePlacement | None:
        """The same on the best of some nodes."""
        return self.engine.best_among(shape, nodes)

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        self.cluster.place(shape, placement)

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        self.cluster.release(shape, placement)

    def restore(self, shape: Shape, placement: NodePlacement) -> None:
        self.cluster.place(shape, placement, held=True)

    def if_idle(self, shape: Shape, nodes: Sequence[int]) -> tuple[Bools, Ints]:
        rows = np.asarray(nodes, np.intp)
        return self.compiled(shape).if_idle(rows), self.cluster.gpu_users[rows].astype(np.int64)

    def fits_at(self, shape: Shape, placement: NodePlacement) -> bool:
        try:
            self.cluster.place(shape, placement)
        except CalabashError:
            return False
        self.cluster.release(shape, placement)
        return True

    def compiled(self, shape: Shape) -> Compiled:
        """The shape's masks on this cluster."""
        found = self._compiled.get(shape)
        if found is None:
            if len(self._compiled) >= SHAPES_KEPT_MAX:
                self._compiled.clear()
            found = self._compiled[shape] = Compiled(self.cluster, shape)
        found.renew()
        return found
