"""Placement engine: best node for a shape, from one cached score per shape and node.

Theory of operation. For every shape that was requested there is a vector of scores over the nodes (minus infinity where the
shape does not fit) and a cursor into the change log of the cluster. A query rescores the rows that changed since the last query
for the shape, and returns the first row with the largest score. Rows are in a fixed pseudo-random order, so that the first
among equals is first fit; scores are rounded to 1e-9, so that float noise does not break ties. Repeating a query without
changes costs one comparison. After several refusals in a row, as in a full cluster, a shape is first compared with the largest
free amounts of all nodes (``maxima``). While few nodes have free compute on a device, a new shape is scored on these nodes
only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.best_effort import best_effort_scores, with_device_preference
from calabash.sched.cluster.columns import Floats, Rows
from calabash.sched.cluster.device_choice import choose_devices
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.maxima import Maxima
from calabash.sched.cluster.scoring import PlacementPolicy, Scorer
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, NodePlacement, Shape

_DECIMALS = 9
_NOWHERE = -np.inf
# Above this share of changed rows, rescoring all rows is cheaper than gathering the changed ones.
_FULL_PASS_SHARE = 0.25
# Below this number of rows, searching all scores is faster than keeping track of the largest.
_MANY_ROWS = 4096
# After this number of refusals in a row, the maxima are checked first.
_REFUSALS_MIN = 8


class _Entry:
    """Cached scores of one shape for all nodes, with the position in the change log up to which they are current."""

    __slots__ = ("compiled", "cursor", "devices", "first", "scores", "static_version", "version")

    def __init__(self, compiled: CompiledShape, count: int) -> None:
        self.compiled = compiled
        self.scores: Floats = np.full(count, _NOWHERE)
        self.devices: npt.NDArray[np.int8] | None = np.zeros(count, np.int8) if compiled.shape.fraction else None
        self.cursor = -1
        self.static_version = -1
        self.version = -1
        self.first = -1  # row of the first largest score; -1 if it must be searched


class Engine:
    """Best node for a shape by a placement policy. Reads the cluster and never changes it.

    Args:
        policy: computes the scores.

    Attributes:
        maxima: largest free amounts of the nodes.
    """

    def __init__(self, cluster: Cluster, policy: PlacementPolicy) -> None:
        self.cluster = cluster
        self.scorer: Scorer = policy.bind(cluster)
        self._policy = policy.name
        self._entries: dict[Shape, _Entry] = {}
        self.maxima = Maxima(cluster)
        self._refusals = 0  # since the last placement was found, or the maxima last did not refuse a shape

    def decide(self, shape: Shape) -> NodePlacement | None:
        """Return the ``best`` placement for a request that has just arrived.

        Policies that learn count the request.
        """
        self.scorer.observe(shape)
        return self.best(shape)

    def observe(self, shape: Shape) -> None:
        """Count a request of the shape that has just arrived, for policies that learn."""
        self.scorer.observe(shape)

    def best(self, shape: Shape) -> NodePlacement | None:
        """Return the best placement by the policy, without taking it; None if the shape fits nowhere."""
        entry = self._entries.get(shape)
        if entry is None or entry.cursor != self.cluster.position or entry.version != self.scorer.version:
            if self.fits_nowhere(shape):
                return None
            entry = self._fresh(shape)
        scores = entry.scores
        if self.scorer.random_ties:
            row = self._random_best(scores)
        else:
            row = entry.first
            if row < 0:
                row = entry.first = int(scores.argmax())
        score = scores.item(row)
        if score == _NOWHERE:
            self._refusals += 1
            return None
        self._refusals = 0
        return self._placement(entry, row, score)

    def fits_nowhere(self, shape: Shape, *, new: bool = False) -> bool:
        """Return True if a quick check shows that the shape fits on no schedulable node.

        The check costs time itself, so it is made in two cases only; otherwise the result is False. The first case is
        that several queries in a row have found no node. The second is that the scores of the shape would have to be
        computed for all nodes while few nodes have free compute on a device.

        Args:
            new: the scores of all nodes would have to be computed. If False, this is assumed for shapes without cached
                scores.
        """
        if self._refusals < _REFUSALS_MIN and not (self.maxima.few_open and (new or shape not in self._entries)):
            return False
        if self.maxima.exceeded(shape):
            return True
        self._refusals = 0
        return False

    def best_among(self, shape: Shape, rows: Sequence[int]) -> NodePlacement | None:
        """Return the best placement on one of these rows, without taking it; None if the shape fits on none of them."""
        if not rows:
            return None
        entry = self._fresh(shape)
        scores = entry.scores[np.asarray(rows, np.intp)]
        first = int(scores.argmax())
        score = scores.item(first)
        return None if score == _NOWHERE else self._placement(entry, rows[first], score)

    def scores(self, shape: Shape) -> Floats:
        """Return the current score of each node, by row; minus infinity where the shape does not fit.

        The array is the cached one and must not be changed.
        """
        return self._fresh(shape).scores

    @property
    def preference(self) -> str:
        """Return a text for people: the name of the policy, followed by the scorer's note (``Scorer.note``) if any."""
        return f"{self._policy} ({self.scorer.note})" if self.scorer.note else self._policy

    @property
    def memory_bytes(self) -> int:
        """Return the memory that the cached scores use."""
        return sum(
            entry.scores.nbytes + (0 if entry.devices is None else entry.devices.nbytes)
            for entry in self._entries.values()
        )

    # ---------------------------------------------------------------------------------------- the cache
    def _fresh(self, shape: Shape) -> _Entry:
        cluster = self.cluster
        entry = self._entries.get(shape)
        if entry is None or len(entry.scores) != cluster.node_count:
            if len(self._entries) >= SHAPES_KEPT_MAX:
                self._entries.clear()
            entry = self._entries[shape] = _Entry(CompiledShape(cluster, shape), cluster.node_count)
        version = self.scorer.version
        if entry.cursor == cluster.position and entry.version == version:
            return entry
        if entry.static_version != cluster.static_version:
            entry.compiled.renew()
            entry.static_version = cluster.static_version
            entry.cursor = -1
        changed = None if entry.version != version else cluster.changed_since(entry.cursor)
        if changed is None:
            self._renew_all(entry)
        elif len(changed) == 1:
            self._renew(entry, np.array(changed, np.intp))
        else:
            rows = set(changed)
            if len(rows) > _FULL_PASS_SHARE * cluster.node_count + 8:
                self._renew_all(entry)
            else:
                self._renew(entry, np.fromiter(rows, np.intp, len(rows)))
        entry.cursor = cluster.position
        entry.version = version
        return entry

    def _renew_all(self, entry: _Entry) -> None:
        entry.first = -1
        shape = entry.compiled.shape
        if self.fits_nowhere(shape, new=True):
            entry.scores.fill(_NOWHERE)
            return
        rows = self.maxima.rows_for(shape) if self.maxima.few_open else None
        if rows is None:
            rows = np.arange(self.cluster.node_count)
        else:
            entry.scores.fill(_NOWHERE)
        self._renew(entry, rows)

    def _renew(self, entry: _Entry, rows: Rows) -> None:
        scores, devices = self.scorer.score(entry.compiled, rows)
        if entry.compiled.shape.best_effort:
            fits = entry.compiled.devices(rows)
            scores = with_device_preference(self.cluster, rows, fits, scores)
            devices = best_effort_scores(self.cluster, rows, fits).argmax(axis=1).astype(np.int8)
        scores = scores.round(_DECIMALS)
        if entry.first >= 0 and len(entry.scores) >= _MANY_ROWS:
            before = entry.scores.item(entry.first)
            entry.scores[rows] = scores
            entry.first = self._still_first(entry, rows, scores, before)
        else:
            entry.scores[rows] = scores
            entry.first = -1
        if devices is not None and entry.devices is not None:
            entry.devices[rows] = devices

    @staticmethod
    def _still_first(entry: _Entry, rows: Rows, scores: Floats, before: float) -> int:
        """Return the first row with the largest score after some rows were rescored; -1 if all rows must be searched.

        If a new score is above ``before``, it is the largest. If the score of the old first row has not changed, the
        old first row or a rescored row before it is the result. If its score has fallen, the result is not known.

        Args:
            rows, scores: the rescored rows and their new scores.
            before: largest score before. No other row has a larger score, and the rows with this score come after the
                old first row.
        """
        top = scores.max()
        if top > before:
            return int(rows[scores == top].min())
        first = entry.first
        if entry.scores.item(first) != before:
            return -1
        return min(first, int(rows[scores == top].min())) if top == before else first

    def _random_best(self, scores: Floats) -> int:
        best = scores.max()
        return int(self.scorer.rng.choice(np.flatnonzero(scores == best))) if best > _NOWHERE else 0

    def _placement(self, entry: _Entry, row: int, score: float) -> NodePlacement | None:
        shape = entry.compiled.shape
        if entry.devices is not None:
            device = entry.devices.item(row)
            if not shape.best_effort:
                device = self.scorer.device(entry.compiled, row, device)
            return NodePlacement(node=row, devices=(device,), score=score)
        if not shape.gpu_count:
            return NodePlacement(node=row, score=score)
        if self.plain_whole(shape):
            free = (self.cluster.gpu_free_milli[row] == 1000).nonzero()[0][: shape.gpu_count]
            return NodePlacement(node=row, devices=tuple(free.tolist()), score=score)
        return choose_devices(entry.compiled, row, known=True)

    def plain_whole(self, shape: Shape) -> bool:
        """Return True if the shape is for whole devices and any free device serves it, whatever the node."""
        cluster = self.cluster
        plain = not (cluster.has_modes or cluster.has_unhealthy or cluster.has_mixed or cluster.gpu_tracked)
        return plain and shape.whole and not (shape.topology or shape.models or shape.mode)
