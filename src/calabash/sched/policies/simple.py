"""Simple policies: random, bestfit, dotproduct, packing and clustering as published with FGD, and spread.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC'23, and its trace simulator. Except for random and spread, scores are
whole numbers from 0 to 100, normalised by a reference node of 128 vCPU and 8 devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Floats, Rows
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import Scored, Scorer
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.policies.base import Maker, ScorerBase, masked

CPU_REFERENCE_MILLI = 128_000.0
GPU_REFERENCE_MILLI = 8_000.0


class _Simple(ScorerBase):
    """Scorer that computes a formula over the totals of a node; slices are placed on the fullest sufficient device."""

    def score(self, compiled: CompiledShape, rows: Rows) -> Scored:
        ok, fitting = self.fits(compiled, rows)
        devices = self.fullest(rows, fitting) if fitting is not None and compiled.shape.fraction else None
        chosen = None if devices is None else devices.astype(np.intp)
        return masked(self.formula(compiled, rows, chosen), ok), devices

    def formula(self, compiled: CompiledShape, rows: Rows, devices: Rows | None) -> Floats:
        """Return the scores of some nodes, regardless of whether the shape fits.

        Args:
            devices: for each of these nodes, the device on which a slice would be placed; None for other shapes.
        """
        raise NotImplementedError


class _Random(ScorerBase):
    random_ties = True

    def score(self, compiled: CompiledShape, rows: Rows) -> Scored:
        ok, fitting = self.fits(compiled, rows)
        devices = self.fullest(rows, fitting) if fitting is not None and compiled.shape.fraction else None
        return masked(np.zeros(len(rows)), ok), devices

    def device(self, compiled: CompiledShape, row: int, device: int) -> int:
        return int(self.rng.choice(np.flatnonzero(compiled.devices(np.array([row]))[0])))


class _BestFit(_Simple):
    def formula(self, compiled: CompiledShape, rows: Rows, devices: Rows | None) -> Floats:
        shape, cluster = compiled.shape, self.cluster
        cpu_left = (cluster.cpu_free_milli[rows] - shape.cpu_milli) / CPU_REFERENCE_MILLI
        gpu_left = (cluster.gpu_sum_milli[rows] - shape.gpu_total_milli) / GPU_REFERENCE_MILLI
        return np.trunc((1 - (cpu_left + gpu_left) * 0.5) * 100)


class _DotProduct(_Simple):
    def formula(self, compiled: CompiledShape, rows: Rows, devices: Rows | None) -> Floats:
        shape, cluster = compiled.shape, self.cluster
        cpu = cluster.cpu_free_milli[rows] / CPU_REFERENCE_MILLI * (shape.cpu_milli / CPU_REFERENCE_MILLI)
        gpu = cluster.gpu_sum_milli[rows] / GPU_REFERENCE_MILLI * (shape.gpu_total_milli / GPU_REFERENCE_MILLI)
        return np.trunc(100 * (1 - (cpu + gpu) / 2))


class _Packing(_Simple):
    def formula(self, compiled: CompiledShape, rows: Rows, devices: Rows | None) -> Floats:
        shape, cluster = compiled.shape, self.cluster
        if not shape.gpu_count:
            return np.zeros(len(rows))
        free = (cluster.gpu_free_milli[rows] == WHOLE_MILLI).sum(axis=1)
        scores = np.full(len(rows), float(max(50 - shape.gpu_count, 33)))
        if devices is not None:
            gap = cluster.gpu_free_milli[rows, devices]
            shared = np.maximum(100 - (gap * 100 // WHOLE_MILLI) // 10, 50)
            scores = np.where(gap < WHOLE_MILLI, shared, scores)
        idle = free == cluster.gpu_count[rows]
        return np.where(idle, np.maximum(33 - free, free), scores).astype(np.float64)


class _Clustering(_Simple):
    def formula(self, compiled: CompiledShape, rows: Rows, devices: Rows | None) -> Floats:
        shape, cluster = compiled.shape, self.cluster
        if not shape.gpu_count:
            return np.zeros(len(rows))
        kinds = cluster.kind_users[rows]
        present = (kinds > 0).sum(axis=1)
        same = kinds[:, shape.kind] > 0
        base = 25 * (8000 - cluster.gpu_sum_milli[rows]) // 8000
        bonus = np.where(same, np.where(present == 1, 75, 50), np.where(present == 0, 25, 0))
        return (base + bonus).astype(np.float64)


class _Spread(_Simple):
    def formula(self, compiled: CompiledShape, rows: Rows, devices: Rows | None) -> Floats:
        cluster = self.cluster
        whole = np.maximum(cluster.gpu_count[rows] * WHOLE_MILLI, 1)
        gpu = cluster.gpu_sum_milli[rows] / whole
        cpu = cluster.cpu_free_milli[rows] / np.maximum(cluster.cpu_milli[rows], 1)
        return gpu + 1e-3 * cpu if compiled.shape.gpu_count else cpu

    def score(self, compiled: CompiledShape, rows: Rows) -> Scored:
        ok, fitting = self.fits(compiled, rows)
        devices = None
        if fitting is not None and compiled.shape.fraction:
            emptiest = np.where(fitting, self.cluster.gpu_free_milli[rows], -1)
            devices = emptiest.argmax(axis=1).astype(np.int8)
        return masked(self.formula(compiled, rows, None), ok), devices


_SCORERS: dict[str, type[ScorerBase]] = {
    "random": _Random,
    "bestfit": _BestFit,
    "dotproduct": _DotProduct,
    "packing": _Packing,
    "clustering": _Clustering,
    "spread": _Spread,
}
NAMES = tuple(_SCORERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimplePolicy:
    """One of the simple policies, by its name. Only ``random`` uses the seed."""

    name: str
    seed: int = 0

    def bind(self, cluster: Cluster) -> Scorer:
        scorer: Scorer = _SCORERS[self.name](cluster, seed=self.seed)  # type: ignore[assignment]
        return scorer


def _maker(name: str) -> Maker:
    return lambda _demand, seed: SimplePolicy(name=name, seed=seed)


MAKERS: Mapping[str, Maker] = {name: _maker(name) for name in NAMES}
