"""FGD policy: fragmentation gradient descent, the best published baseline.

Source: Weng et al., USENIX ATC'23. For a typical request m, the fragment of a node is the free compute that m cannot use: all
of it if m does not fit on the node, else the free compute of devices that have less than m needs. F is the expectation of the
fragment over the typical requests. A request is placed where F grows least. The score is ``int(100 sigmoid(-dF / 1000))``; its
coarseness is part of the method, because it suppresses noise and lets first fit consolidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Floats, Ints, Rows
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import Scored, Scorer
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.policies.base import Maker, ScorerBase, masked


@dataclass(frozen=True, slots=True, kw_only=True)
class FgdPolicy:
    """FGD for a known demand.

    Args:
        quantised: round the scores as published; False keeps exact scores, for ablation studies.
    """

    demand: Demand
    quantised: bool = True
    name: str = "fgd"

    def bind(self, cluster: Cluster) -> Scorer:
        return _FgdScorer(cluster, self.demand, quantised=self.quantised)


class _FgdScorer(ScorerBase):
    def __init__(self, cluster: Cluster, demand: Demand, *, quantised: bool) -> None:
        super().__init__(cluster)
        typical = demand.typical()
        self._quantised = quantised
        self._share = np.array([share for _, share in typical])
        self._cpu = np.array([key[0] for key, _ in typical], np.int64)
        self._need = np.array([key[1] for key, _ in typical], np.int64)
        self._count = np.array([key[2] for key, _ in typical], np.int64)
        self._models = [key[3] for key, _ in typical]
        self._allowed: Bools | None = None
        self._static_version = -1

    def _renew(self) -> None:
        """Compute the mask ``_allowed``: by node and typical request, True if the request accepts the device model.

        ``_allowed`` stays None if no typical request names a model.
        """
        cluster = self.cluster
        self._static_version = cluster.static_version
        if not any(self._models):
            return
        known = np.array([[not models or name in models for models in self._models] for name in cluster.models])
        self._allowed = known[cluster.gpu_model[:, 0]]

    def _fragment(self, cpu: Ints, allowed: Bools | None, gaps: Ints) -> Floats:
        """Return the expected fragment F, in milli, of some nodes in given states.

        The arguments may have any number of leading dimensions, which the result has too.

        Args:
            cpu: free CPU milli of the nodes.
            gaps: free compute of the devices, with the devices as last dimension.
            allowed: True where a typical request accepts the node, with the typical requests as last dimension; None if
                all requests accept all nodes.
        """
        total = gaps.sum(axis=-1)
        runs = (cpu[..., None] >= self._cpu) & (self._need > 0)
        if allowed is not None:
            runs = runs & allowed
        smaller = gaps[..., None] < self._need
        runs = runs & ((~smaller).sum(axis=-2) >= self._count)
        left = (gaps[..., None] * smaller).sum(axis=-2)
        expected: Floats = (np.where(runs, left, total[..., None]) * self._share).sum(axis=-1)
        return expected

    def score(self, compiled: CompiledShape, rows: Rows) -> Scored:
        if self._static_version != self.cluster.static_version:
            self._renew()
        ok, fitting = self.fits(compiled, rows)
        scores = np.full(len(rows), -np.inf)
        devices = np.zeros(len(rows), np.int8) if compiled.shape.fraction else None
        possible = np.flatnonzero(ok)
        step = 4096
        for start in range(0, len(possible), step):
            part = possible[start : start + step]
            found, chosen = self._gradients(compiled, rows[part], None if fitting is None else fitting[part])
            scores[part] = found
            if devices is not None and chosen is not None:
                devices[part] = chosen
        return masked(scores, ok), devices

    def _gradients(
        self, compiled: CompiledShape, rows: Rows, fitting: Bools | None
    ) -> tuple[Floats, npt.NDArray[np.int8] | None]:
        """Return the scores of the rows, and the best device of each row if the shape is a slice of one device.

        Args:
            fitting: mask of the devices where the shape fits; None for CPU-only shapes.
        """
        shape, cluster = compiled.shape, self.cluster
        gaps = cluster.gpu_free_milli[rows]
        cpu = cluster.cpu_free_milli[rows]
        allowed = None if self._allowed is None else self._allowed[rows]
        before = self._fragment(cpu, allowed, gaps)
        if shape.fraction and fitting is not None:
            width = gaps.shape[1]
            after = gaps[:, None, :] - shape.gpu_milli * np.eye(width, dtype=np.int64)[None]
            wide = None if allowed is None else allowed[:, None, :]
            cpu_after = np.broadcast_to((cpu - shape.cpu_milli)[:, None], (len(rows), width))
            growth = (self._fragment(cpu_after, wide, np.maximum(after, 0)) - before[:, None]) / WHOLE_MILLI
            found = np.where(fitting, self._scaled(growth), -np.inf)
            chosen = found.argmax(axis=1)
            return found[np.arange(len(rows)), chosen], chosen.astype(np.int8)
        after = gaps.copy()
        if shape.gpu_count and fitting is not None:
            first = fitting & (fitting.cumsum(axis=1) <= shape.gpu_count)
            after[first] -= shape.gpu_milli
        growth = (self._fragment(cpu - shape.cpu_milli, allowed, after) - before) / WHOLE_MILLI
        return self._scaled(growth), None

    def _scaled(self, growth: Floats) -> Floats:
        if not self._quantised:
            return -growth
        return np.trunc(100.0 / (1.0 + np.exp(growth)))


MAKERS: Mapping[str, Maker] = {"fgd": lambda demand, _: FgdPolicy(demand=demand or Demand())}
