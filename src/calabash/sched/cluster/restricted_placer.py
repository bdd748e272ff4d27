"""A ``Placer`` that chooses among some nodes only, such as those of one domain of the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from calabash.sched.cluster.columns import Bools, Ints, Rows
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.transaction import Placer


class RestrictedPlacer:
    """``Placer`` over another one that chooses no placement on nodes outside of ``rows``.

    Taking, releasing and restoring placements is not restricted.

    Args:
        node_count: number of rows of the cluster.
    """

    def __init__(self, placer: Placer, rows: Rows, node_count: int) -> None:
        self._placer = placer
        self._rows = rows
        self._list: list[int] = rows.tolist()
        self._allowed = np.zeros(node_count, np.bool_)
        self._allowed[rows] = True
        self.domains = placer.domains
        self.place = placer.place
        self.release = placer.release
        self.restore = placer.restore
        self.device_users = placer.device_users
        self.state_of = placer.state_of
        self.fits_at = placer.fits_at

    def choose(self, shape: Shape) -> NodePlacement | None:
        return self._placer.choose_among(shape, self._list)

    def choose_among(self, shape: Shape, nodes: Sequence[int]) -> NodePlacement | None:
        return self._placer.choose_among(shape, [node for node in nodes if self._allowed[node]])

    def choose_on(self, shape: Shape, node: int) -> NodePlacement | None:
        return self._placer.choose_on(shape, node) if self._allowed[node] else None

    def count(self, shape: Shape) -> tuple[Ints, bool]:
        counts, exact = self._placer.count(shape)
        return np.where(self._allowed, counts, 0), exact

    def if_idle(self, shape: Shape, nodes: Sequence[int]) -> tuple[Bools, Ints]:
        mask, users = self._placer.if_idle(shape, nodes)
        return mask & self._allowed[np.asarray(nodes, np.intp)][:, None], users

    def nodes_for(self, shape: Shape) -> Ints:
        nodes = self._placer.nodes_for(shape)
        return nodes[self._allowed[nodes]]

    def least_contended(self, shape: Shape, others: Sequence[Shape], count: int) -> Ints:
        nodes = self._placer.least_contended(shape, others, len(self._allowed))
        return nodes[self._allowed[nodes]][:count]

    def placements_on(self, shape: Shape, node: int, count: int) -> Iterator[NodePlacement]:
        return self._placer.placements_on(shape, node, count) if self._allowed[node] else iter(())
