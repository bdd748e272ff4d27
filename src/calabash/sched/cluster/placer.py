"""Placement on the resident cluster with the scores of the engine: the implementation of ``transaction.Placer``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from calabash.model.errors import CalabashError
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Ints
from calabash.sched.cluster.device_choice import choose_devices, device_state, placement_options
from calabash.sched.cluster.domains import Domains, domains_of
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, NodePlacement, Shape


class ClusterPlacer:
    """``Placer`` over the resident arrays; cordoned nodes are never chosen."""

    def __init__(self, cluster: Cluster, engine: Engine) -> None:
        self.cluster = cluster
        self.engine = engine
        self._compiled: dict[Shape, CompiledShape] = {}

    def domains(self) -> Domains:
        return domains_of(self.cluster)

    def choose(self, shape: Shape) -> NodePlacement | None:
        return self.engine.best(shape)

    def choose_on(self, shape: Shape, node: int) -> NodePlacement | None:
        return choose_devices(self.compiled(shape), node)

    def choose_among(self, shape: Shape, nodes: Sequence[int]) -> NodePlacement | None:
        return self.engine.best_among(shape, nodes)

    def count(self, shape: Shape) -> tuple[Ints, bool]:
        compiled = self.compiled(shape)
        return compiled.count(np.arange(self.cluster.node_count)), compiled.counted

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        self.cluster.place(shape, placement)

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        self.cluster.release(shape, placement)

    def restore(self, shape: Shape, placement: NodePlacement) -> None:
        self.cluster.place(shape, placement, held=True)

    def if_idle(self, shape: Shape, nodes: Sequence[int]) -> tuple[Bools, Ints]:
        rows = np.asarray(nodes, np.intp)
        return self.compiled(shape).if_idle(rows), self.cluster.gpu_users[rows].astype(np.int64)

    def device_users(self) -> npt.NDArray[Any]:
        return self.cluster.gpu_users

    def nodes_for(self, shape: Shape) -> Ints:
        return np.flatnonzero(self.engine.scores(shape) > -np.inf)

    def least_contended(self, shape: Shape, others: Sequence[Shape], count: int) -> Ints:
        scores, nodes = self.engine.scores(shape), self.nodes_for(shape)
        contenders = np.zeros(len(nodes), np.int64)
        for other in others:
            contenders += self.engine.scores(other)[nodes] > -np.inf
        if len(nodes) > count:
            enough = contenders <= np.partition(contenders, count - 1)[count - 1]
            nodes, contenders = nodes[enough], contenders[enough]
        if count == 1 and len(nodes):
            return nodes[[int(scores[nodes].argmax())]]
        order: Ints = nodes[np.lexsort((nodes, -scores[nodes], contenders))[:count]]
        return order

    def placements_on(self, shape: Shape, node: int, count: int) -> Iterator[NodePlacement]:
        return islice(placement_options(self.compiled(shape), node), count)

    def state_of(self, node: int, shapes: Sequence[Shape]) -> Hashable:
        cluster = self.cluster
        masks = [self.compiled(shape) for shape in shapes]
        fits = tuple(m.static is None or bool(m.static[node]) for m in masks)
        devices = Counter(
            (
                device_state(cluster, node, d),
                *(bool(m.device_static[node, d]) for m in masks if m.device_static is not None),
            )
            for d in range(int(cluster.gpu_count[node]))
        )
        host = (cluster.cpu_free_milli.item(node), cluster.memory_free_mib.item(node), bool(cluster.schedulable[node]))
        return (host, fits, frozenset(devices.items()))

    def fits_at(self, shape: Shape, placement: NodePlacement) -> bool:
        free, row = self.cluster.gpu_free_milli, placement.node
        if shape.gpu_milli and any(free.item(row, device) < shape.gpu_milli for device in placement.devices):
            return False  # avoids the cost of raising the error
        try:
            self.cluster.place(shape, placement)
        except CalabashError:
            return False
        self.cluster.release(shape, placement)
        return True

    def compiled(self, shape: Shape) -> CompiledShape:
        """Return the shape compiled for this cluster, with current masks. Cached by shape."""
        found = self._compiled.get(shape)
        if found is None:
            if len(self._compiled) >= SHAPES_KEPT_MAX:
                self._compiled.clear()
            found = self._compiled[shape] = CompiledShape(self.cluster, shape)
        found.renew()
        return found
