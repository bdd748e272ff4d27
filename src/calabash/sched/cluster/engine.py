"""The decision engine: one cached score per shape and node, renewed only where something changed.

Theory of operation. For every shape that was ever asked for there is one vector of scores over the nodes (minus
infinity where it does not fit) and a cursor into the cluster's change log. A decision renews the entries of the rows
that changed since this shape last looked, and takes the first largest score. Rows are in a fixed pseudo-random order,
so "first among equals" is first fit; scores are rounded to 1e-9, because float noise would otherwise break it. A shape
that fits nowhere is remembered by its cursor: asked again with nothing changed, it costs one comparison. After some refusals
in a row, which is what a full cluster looks like, a shape is first compared with the most that any node has free (``maxima``).
While few nodes have anything free on a device, a new shape is compared and scored on these nodes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.best_effort import preferred, worth
from calabash.sched.cluster.choose import choose
from calabash.sched.cluster.columns import Floats, Rows
from calabash.sched.cluster.fit import Compiled
from calabash.sched.cluster.maxima import Maxima
from calabash.sched.cluster.scoring import PlacementPolicy, Scorer
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, NodePlacement, Shape

_DECIMALS = 9
_NOWHERE = -np.inf
# Above this many changed rows one pass over everything is cheaper than gathering them.
_FULL_PASS_SHARE = 0.25
# Below this a look at all scores is quicker than keeping track of the largest.
_MANY_ROWS = 4096
# After so many refusals in a row the maxima are looked at first.
_REFUSALS_MIN = 8


class _Entry:
    """What is known of one shape."""

    __slots__ = ("compiled", "cursor", "devices", "first", "scores", "static_version", "version")

    def __init__(self, compiled: Compiled, count: int) -> None:
        self.compiled = compiled
        self.scores: Floats = np.full(count, _NOWHERE)
        self.devices: npt.NDArray[np.int8] | None = np.zeros(count, np.int8) if compiled.shape.fraction else None
        self.cursor = -1
        self.static_version = -1
        self.version = -1
        self.first = -1  # row of the first largest score; -1: it has to be looked for


class Engine:
    """Answers where a shape goes best now. It reads the cluster and never changes it.

    Args:
        cluster: the resident arrays.
        policy: makes the scores; see ``policies``.

    Attributes:
        maxima: the most that nodes have free.
    """

    def __init__(self, cluster: Cluster, policy: PlacementPolicy) -> None:
        self.cluster = cluster
        self.scorer: Scorer = policy.bind(cluster)
        self._policy = policy.name
        self._entries: dict[Shape, _Entry] = {}
        self.maxima = Maxima(cluster)
        self._refusals = 0  # since a place was found last, or the maxima did not help

    def decide(self, shape: Shape) -> NodePlacement | None:
        """The best place by the policy for a request that arrives, or None when it fits nowhere; nothing is taken."""
        self.scorer.observe(shape)
        return self.best(shape)

    def observe(self, shape: Shape) -> None:
        """A request of this shape has arrived: policies that learn count it."""
        self.scorer.observe(shape)

    def best(self, shape: Shape) -> NodePlacement | None:
        """As ``decide``, but nothing is learned: for requests that are asked again, and for what-if questions."""
        entry = self._entries.get(shape)
        if entry is None or entry.cursor != self.cluster.position or entry.version != self.scorer.version:
            if self.refuse(shape):
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

    def refuse(self, shape: Shape, *, new: bool = False) -> bool:
        """Return True if it is plain that the shape fits nowhere. It is looked at after some refusals in a row only, and after
        as many again where that was in vain. Where all nodes would be scored else, it is also looked at while few nodes have
        something free on a device.

        Args:
            new: all nodes would be scored although there are scores of the shape.
        """
        if self._refusals < _REFUSALS_MIN and not (self.maxima.few_open and (new or shape not in self._entries)):
            return False
        if self.maxima.refuse(shape):
            return True
        self._refusals = 0
        return False

    def best_among(self, shape: Shape, rows: Sequence[int]) -> NodePlacement | None:
        """As ``best``, on one of these rows."""
        if not rows:
            return None
        entry = self._fresh(shape)
        scores = entry.scores[np.asarray(rows, np.intp)]
        first = int(scores.argmax())
        score = scores.item(first)
        return None if score == _NOWHERE else self._placement(entry, rows[first], score)

    def scores(self, shape: Shape) -> Floats:
        """[N] current scores, minus infinity where the shape does not fit; a view, not to be changed."""
        return self._fresh(shape).scores

    @property
    def preference(self) -> str:
        """By what it prefers one node to another now, in words for people: the policy, and what it prices out of the usual."""
        return f"{self._policy} ({self.scorer.note})" if self.scorer.note else self._policy

    @property
    def memory_bytes(self) -> int:
        """What the caches hold."""
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
            entry = self._entries[shape] = _Entry(Compiled(cluster, shape), cluster.node_count)
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
        if self.refuse(shape, new=True):
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
            scores = preferred(self.cluster, rows, fits, scores)
            devices = worth(self.cluster, rows, fits).argmax(axis=1).astype(np.int8)
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
        """The first largest row after a renewal of some; -1 when only a look at all rows can tell.

        Rows that were not renewed score at most ``before``, and none of them that reaches it stands before the old first.
        So a larger renewed score wins outright, and the old first stays unless it fell.
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
        return choose(entry.compiled, row, known=True)

    def plain_whole(self, shape: Shape) -> bool:
        """Whole cards by lowest index, where nothing but being free decides."""
        cluster = self.cluster
        plain = not (cluster.has_modes or cluster.has_unhealthy or cluster.has_mixed or cluster.gpu_tracked)
        return plain and shape.whole and not (shape.topology or shape.models or shape.mode)
