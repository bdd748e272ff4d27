"""PGB policy, the default: priced gaps and CPU balance.

Theory of operation. Every node has a potential, the negative value of its free resources. A request is placed where it
increases the potential least:

    P(n) = - sum_i [ H(g_i) + w_square (g_i)^2 ]      gaps at their learned price, slightly convex to keep whole cards free
           + w_cpu  G (1 - fed(C / G))                cards that will be left without CPU
           + w_fragment F(n)                          expected fragment of FGD: compute that typical requests cannot use
           - w_block sum_b s_b min(free / b, C / c_b) requests for several cards that would still fit; more if CPU is short
           - w_host  sum_h s_h min(C / c_h, 16)       requests without devices that would still fit, if CPU is tight
           - w_model scarcity(model) G                cards of models that other requests require
           + w_memory sum_i |g_i - m_i|               compute without memory, and memory without compute
           - w_spare usable(S) + w_unfed max(0, -S)   usable spare CPU, and CPU that cards lack, if CPU runs out

g_i is the free compute of device i and m_i its free memory (both 0..1), G the sum of g_i, C the free vCPU, and S the spare vCPU
(``spare``: C less the CPU of light requests for G, or limited by host memory). H, fed, s_b and scarcity are tables learned from
the demand (``tables``); no weight is tuned per workload. All terms that depend on C alone change only at known break points.
So gaps, fragments and blocks are combined into one table per interval of C, and scoring a node takes a few look-ups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from calabash.model.extras import is_installed
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Floats, Ints, Rows
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import Devices, Scored, Scorer
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, WHOLE_MILLI, Shape
from calabash.sched.policies.base import Maker, ScorerBase
from calabash.sched.policies.spare import STEP_MILLI, SpareCpu, learn_spare
from calabash.sched.policies.tables import LORENZ_POINTS, LORENZ_STEP_VCPU, Tables, learn, neutral
from calabash.sched.policies.turnover import Turnover

LEARN_FIRST = 200
LEARN_GROWTH = 3.0
DRIFT_MIN = 0.15
BLOCKS_PER_NODE_MAX = 16
_GAPS = WHOLE_MILLI + 1
# For at most this number of gaps the growth is computed directly; a table for the size of the slice would cost more.
_FEW_GAPS = 1024
_LORENZ_VCPU = np.arange(LORENZ_POINTS) * LORENZ_STEP_VCPU
# Resolution of the table of the CPU balance; interpolating for each score would cost more than all other terms.
FED_STEPS_PER_VCPU = 64
_FED_VCPU = (np.arange(LORENZ_POINTS * LORENZ_STEP_VCPU * FED_STEPS_PER_VCPU) + 0.5) / FED_STEPS_PER_VCPU


@dataclass(frozen=True, slots=True, kw_only=True)
class PgbWeights:
    """Weights of the terms of the potential: in cards, but ``spare`` and ``unfed`` in cards per vCPU.

    Args:
        block_scarce: added to ``block`` in proportion to the cube of ``SpareCpu.strength``, because requests for several cards
            are the first that no longer fit when CPU runs out.
    """

    square: float = 0.2
    cpu: float = 0.4
    fragment: float = 0.05
    block: float = 0.1
    model: float = 0.3
    memory: float = 0.1
    host: float = 1.0
    spare: float = 0.035
    unfed: float = 0.5
    block_scarce: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PgbPolicy:
    """PGB policy: place a request where it increases the potential of the nodes least.

    Args:
        demand: demand from which the tables are learned once; None to learn them from the requests as they arrive, which needs
            the extra ``placement``: without it the neutral tables are kept.
    """

    demand: Demand | None = None
    weights: PgbWeights = field(default_factory=PgbWeights)
    name: str = "pgb"

    def bind(self, cluster: Cluster) -> Scorer:
        return _PgbScorer(cluster, self.demand, self.weights)


@dataclass(slots=True, kw_only=True)
class _ScoredRows:
    """Values of the rows that are scored, one entry per row, and one column per device where devices are named.

    Attributes:
        gaps: free compute of the devices.
        at: index of each gap in the tables for the interval ``after``.
        after: number of the interval of free CPU in which the row is after the placement.
        free: number of idle cards; None if the tables have no terms for requests of several cards.
        fitting: True for each device where the shape fits; None if only amounts decide.
    """

    rows: Rows
    gaps: Ints
    at: Ints
    after: Rows
    free: Ints | None
    fitting: Bools | None


class _PgbScorer(ScorerBase):
    def __init__(self, cluster: Cluster, demand: Demand | None, weights: PgbWeights) -> None:
        super().__init__(cluster)
        self._weights = weights
        self._learning = demand is None and is_installed("placement")
        self._seen: dict[Shape, int] = {}
        self._seen_count = 0
        self._next_check = LEARN_FIRST
        self._learned = demand or Demand()
        self._ones = np.ones(cluster.width)
        self._turnover = Turnover(cluster)
        self._set_tables(neutral() if demand is None else learn(demand, cluster))

    # ---------------------------------------------------------------------------------------- learning
    def observe(self, shape: Shape) -> None:
        if self._turnover.arrived() and self._tables.spare is not None:
            self._set_tables(self._tables)
        if not self._learning:
            return
        if len(self._seen) >= SHAPES_KEPT_MAX:
            self._seen.clear()
        self._seen[shape] = self._seen.get(shape, 0) + 1
        self._seen_count += 1
        if self._seen_count >= self._next_check:
            self._next_check = int(self._seen_count * LEARN_GROWTH)
            demand = Demand(dict(self._seen))
            if not self._learned.counts or demand.distance(self._learned) > DRIFT_MIN or self._cpu_counts(demand):
                self._learned = demand
                self._set_tables(learn(demand, self.cluster))

    def _cpu_counts(self, demand: Demand) -> bool:
        """Return True if spare CPU has a value by the current tables, or would have one by tables for ``demand``.

        The value depends on properties of the demand that ``Demand.distance`` does not compare. So the caller then
        learns the tables again, whatever the distance.
        """
        return self._tables.spare is not None or learn_spare(demand, self.cluster) is not None

    def _set_tables(self, tables: Tables) -> None:
        """Set the tables, and combine their terms into one table per interval of free CPU."""
        self.version += 1
        self._tables = tables
        self._static_version = -1
        fed = np.interp(_FED_VCPU, _LORENZ_VCPU, tables.fed_share)
        self._hungry = (self._weights.cpu / WHOLE_MILLI) * (1.0 - fed)
        typical = self._learned.typical()
        blocks = tables.blocks
        breaks = {cpu for (cpu, _, _, _), _ in typical}
        breaks |= {cpu * times for _, cpu, _ in blocks for times in range(1, BLOCKS_PER_NODE_MAX + 1)}
        breaks |= {cpu * times for cpu, _ in tables.host_blocks for times in range(1, BLOCKS_PER_NODE_MAX + 1)}
        self._break_list = sorted(breaks)
        self._breaks = np.array(self._break_list, np.int64)
        gaps = np.arange(WHOLE_MILLI + 1)
        worth = tables.gap_value + self._weights.square * (gaps / WHOLE_MILLI) ** 2
        worth -= worth[0]
        floor = np.append(-1, self._breaks)  # smallest free CPU of each interval
        fragment = np.zeros((len(floor), WHOLE_MILLI + 1))
        for (cpu, milli, _count, _), share in typical:
            unused = np.ones_like(fragment, np.bool_)
            if milli:
                unused[floor >= cpu] = gaps < milli
            fragment += share * unused
        # Potential of one device by (interval, gap). Padding columns have gap 0 and potential 0.
        self._device = -worth[None, :] + self._weights.fragment * fragment * gaps / WHOLE_MILLI
        width = self.cluster.width + 1
        block_value = np.zeros((len(floor), width))
        for devices, cpu, weight in blocks:
            by_cpu = np.maximum(floor, 0) // cpu
            block_value += weight * np.minimum(by_cpu[:, None], np.arange(width) // devices)
        self._price_spare(tables.spare)
        scarce = self._spare.strength**3 if self._spare else 0.0
        block_value *= self._weights.block + self._weights.block_scarce * scarce
        for cpu, weight in tables.host_blocks:
            times = np.minimum(np.maximum(floor, 0) // cpu, BLOCKS_PER_NODE_MAX)
            block_value += (self._weights.host * weight * times)[:, None]
        self._blocks = -block_value
        self._has_blocks = bool(blocks or tables.host_blocks)
        self._deltas: dict[int, Floats] = {}

    def _price_spare(self, spare: SpareCpu | None) -> None:
        """Set ``_spare_worth``: the value, in cards, of each amount of spare CPU in steps of STEP_MILLI.

        The first amount is negative: that of a node on which all cards lack CPU.
        """
        self._spare = spare if self._weights.spare and self._turnover.fills else None
        self.note = str(self._spare or "")
        if self._spare is None:
            return
        short = -(-self._spare.card_cpu_milli * self.cluster.width // STEP_MILLI) + 1
        unfed = np.arange(-short, 0) * STEP_MILLI * self._weights.unfed
        worth = np.concatenate((unfed, self._spare.usable_milli * self._weights.spare))
        self._spare_worth: Floats = worth * (self._spare.strength / 1000)
        self._spare_zero = short

    def _renew_scarcity(self) -> None:
        """Set for each node the scarcity of its device model (``Tables.scarcity``), times its weight."""
        cluster = self.cluster
        self._static_version = cluster.static_version
        by_model = np.array([self._tables.scarcity.get(name, 0.0) for name in cluster.models])
        self._scarce = self._weights.model * by_model[cluster.gpu_model[:, 0]]
        self._has_scarce = bool(by_model.any())

    # ---------------------------------------------------------------------------------------- scoring
    def score(self, compiled: CompiledShape, rows: Rows) -> Scored:
        if self._static_version != self.cluster.static_version:
            self._renew_scarcity()
        cluster, shape = self.cluster, compiled.shape
        if len(rows) == 1 and self._spare is None and not shape.fraction:
            return np.array([self._score_one(compiled, rows)]), None
        gaps: Ints = cluster.gpu_free_milli[rows]
        cpu = cluster.cpu_free_milli[rows]
        left = cpu - shape.cpu_milli
        fitting: Bools | None = None
        if compiled.plain:
            # Cost tables are infinite where a gap is too small, so only the amounts of the node must be checked.
            ok = left >= 0
            ok &= cluster.memory_free_mib[rows] >= shape.memory_mib
            if not shape.fraction:
                ok &= cluster.gpu_whole_free[rows] >= shape.gpu_count
        else:
            fitting = compiled.devices(rows, gaps) if shape.gpu_count else None
            ok = compiled.nodes(rows, fitting)
        total = cluster.gpu_sum_milli[rows]
        # The nodes after and before the placement in one array, because numpy calls cost more than elements.
        both = np.concatenate((left, cpu))
        starved = self._starved(both, np.concatenate((total - shape.gpu_total_milli, total)))
        if self._spare is not None:
            starved -= self._spare_value(both, rows, shape)
        count = len(rows)
        growth = starved[:count]
        growth -= starved[count:]
        intervals = self._breaks.searchsorted(both, side="right")
        after, before = intervals[:count], intervals[count:]
        at = gaps + (after * _GAPS)[:, None]
        moved = self._device.take(at)
        moved -= self._device.take(gaps + (before * _GAPS)[:, None])
        growth += moved @ self._ones
        free: Ints | None = None
        if self._has_blocks:
            free = cluster.gpu_whole_free[rows]
            growth -= self._blocks[before, free]
        devices: Devices | None = None
        if shape.fraction:
            scored = _ScoredRows(rows=rows, gaps=gaps, at=at, after=after, free=free, fitting=fitting)
            cost, devices = self._slice_growth(compiled, scored)
            growth += cost
        else:
            if shape.gpu_count:
                growth += shape.gpu_count * self._delta(shape.gpu_milli or WHOLE_MILLI)[after, WHOLE_MILLI]
            if free is not None:
                growth += self._blocks[after, np.maximum(free - shape.gpu_count, 0)]
        if self._has_scarce and shape.gpu_count:
            growth += self._scarce[rows] * (shape.gpu_total_milli / WHOLE_MILLI)
        growth[~ok] = np.inf
        return np.negative(growth, out=growth), devices

    def _score_one(self, compiled: CompiledShape, rows: Rows) -> float:
        """Return the score of one row as ``score`` computes it, for shapes that are not slices and without spare CPU.

        After a start only one row is rescored, and arrays of one element cost several times as much as numbers.
        """
        cluster, shape, row = self.cluster, compiled.shape, rows.item(0)
        gaps, idle = cluster.gpu_free_milli[row], cluster.gpu_whole_free.item(row)
        cpu = cluster.cpu_free_milli.item(row)
        left = cpu - shape.cpu_milli
        if compiled.plain:
            ok = left >= 0 and cluster.memory_free_mib.item(row) >= shape.memory_mib and idle >= shape.gpu_count
        else:
            fitting = compiled.devices(rows, gaps[None]) if shape.gpu_count else None
            ok = compiled.nodes(rows, fitting).item(0)
        if not ok:
            return -np.inf
        total = cluster.gpu_sum_milli.item(row)
        growth = self._starved_one(left, total - shape.gpu_total_milli) - self._starved_one(cpu, total)
        after, before = bisect_right(self._break_list, left), bisect_right(self._break_list, cpu)
        growth += float((self._device[after].take(gaps) - self._device[before].take(gaps)) @ self._ones)
        if self._has_blocks:
            growth -= self._blocks.item(before, idle)
        if shape.gpu_count:
            growth += shape.gpu_count * self._delta(shape.gpu_milli or WHOLE_MILLI).item(after, WHOLE_MILLI)
        if self._has_blocks:
            growth += self._blocks.item(after, max(idle - shape.gpu_count, 0))
        if self._has_scarce and shape.gpu_count:
            growth += self._scarce.item(row) * (shape.gpu_total_milli / WHOLE_MILLI)
        return -growth

    def _slice_growth(self, compiled: CompiledShape, scored: _ScoredRows) -> tuple[Floats, Devices]:
        """Return for each row the least growth of the potential if a slice is placed there, and the device for it.

        The growth is infinite where the slice fits on no device.
        """
        shape, cluster = compiled.shape, self.cluster
        rows, gaps, after, free = scored.rows, scored.gaps, scored.after, scored.free
        if shape.gpu_milli in self._deltas or scored.at.size > _FEW_GAPS:
            cost = self._delta(shape.gpu_milli).take(scored.at)
        else:
            cost = self._device.take(np.maximum(scored.at - shape.gpu_milli, 0)) - self._device.take(scored.at)
            cost[gaps < shape.gpu_milli] = np.inf
        if free is not None:
            kept = self._blocks[after, free]
            breaking = self._blocks[after, np.maximum(free - 1, 0)]
            breaking -= kept
            if breaking.any():
                cost += (gaps == WHOLE_MILLI) * breaking[:, None]
        if cluster.gpu_tracked and shape.gpu_memory_mib:
            cost += self._weights.memory * self._imbalance(shape, rows, gaps)
        if scored.fitting is not None:
            cost[~scored.fitting] = np.inf
        chosen = cost.argmin(axis=1)
        least: Floats = cost.min(axis=1)
        if free is not None:
            least += kept
        return least, chosen.astype(np.int8)

    def _imbalance(self, shape: Shape, rows: Rows, gaps: Ints) -> Floats:
        """Return for each device how much more its free compute and memory differ if the slice is placed there."""
        whole = np.maximum(self.cluster.gpu_mib[rows], 1)
        memory = self.cluster.gpu_free_mib[rows]
        compute = gaps / WHOLE_MILLI
        growth: Floats = np.abs(compute - shape.gpu_milli / WHOLE_MILLI - (memory - shape.gpu_memory_mib) / whole)
        growth -= np.abs(compute - memory / whole)
        return growth

    def _delta(self, milli: int) -> Floats:
        """Return the growth of a device's potential if ``milli`` is taken from its gap, its free compute. Cached.

        The result is a table by interval of free CPU and size of the gap before.
        """
        found = self._deltas.get(milli)
        if found is None:
            found = np.full_like(self._device, np.inf)
            found[:, milli:] = self._device[:, : WHOLE_MILLI + 1 - milli] - self._device[:, milli:]
            self._deltas[milli] = found
        return found

    def _starved(self, cpu_milli: Ints, total_milli: Ints) -> Floats:
        """Return the term of the potential for cards that will be left without CPU.

        Args:
            cpu_milli, total_milli: free CPU and free device compute of the nodes.
        """
        at = cpu_milli * FED_STEPS_PER_VCPU // np.maximum(total_milli, 1)
        hungry: Floats = self._hungry.take(at, mode="clip")
        hungry *= total_milli
        return hungry

    def _starved_one(self, cpu_milli: int, total_milli: int) -> float:
        """Return the term of ``_starved`` for one node."""
        at = cpu_milli * FED_STEPS_PER_VCPU // max(total_milli, 1)
        return self._hungry.item(min(max(at, 0), len(self._hungry) - 1)) * total_milli

    def _spare_value(self, cpu_milli: Ints, rows: Rows, shape: Shape) -> Floats:
        """Return the value of each row's spare CPU after the placement of the shape, followed by the values before it.

        Args:
            cpu_milli: free CPU of the rows after the placement, followed by the free CPU before it.
        """
        assert self._spare is not None
        memory, total = self.cluster.memory_free_mib[rows], self.cluster.gpu_sum_milli[rows]
        amount = self._spare.amount_milli(
            cpu_milli,
            np.concatenate((memory - shape.memory_mib, memory)),
            np.concatenate((total - shape.gpu_total_milli, total)),
        )
        steps = np.floor(amount / STEP_MILLI).astype(np.intp)
        return self._spare_worth.take(steps + self._spare_zero, mode="clip")


# Priced gaps and CPU balance without the other terms; worse when requests end (docs/concepts/placement.md).
_PURE = PgbWeights(square=0.0, fragment=0.0, block=0.0, model=0.0, host=0.0, spare=0.0)
# Keeps free cards for requests for several cards, at the cost of half a percent of allocation.
_LARGE = PgbWeights(block=1.0, model=2.0)

MAKERS: Mapping[str, Maker] = {
    "pgb": lambda demand, _: PgbPolicy(demand=demand),
    "pgb-online": lambda _demand, _seed: PgbPolicy(demand=None, name="pgb-online"),
    "pgb-pure": lambda demand, _: PgbPolicy(demand=demand, weights=_PURE, name="pgb-pure"),
    "pgb-large": lambda demand, _: PgbPolicy(demand=demand, weights=_LARGE, name="pgb-large"),
}
