"""PGB, the default: priced gaps and CPU balance.

Theory of operation. Every node has a potential, the worth of its free resources with the sign turned; a request goes
where it destroys the least worth, and what it destroys beyond its own price is waste:

    P(n) = - sum_i [ H(g_i) + w_square (g_i)^2 ]      gaps at their learned price, slightly convex: keep whole cards whole
           + w_cpu  G (1 - fed(C / G))                cards that will end up without CPU
           + w_fragment F(n)                          expected fragment of FGD: what typical requests cannot use
           - w_block sum_b s_b min(free / b, C / c_b) jobs of several cards that would still fit
           - w_model scarcity(model) G                cards that others insist on
           + w_memory sum_i |g_i - m_i|               compute without memory, memory without compute

g_i free compute of device i and m_i free memory (both 0..1), G their sum, C free vCPU. H, fed, s_b and scarcity are
tables learned from demand (``tables``); no weight is tuned per workload. Everything that depends on C alone changes only
at known break points, so gaps, fragments and blocks collapse into one table per interval of C, and scoring a node is a
few look-ups.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from calabash.sched.cluster import Bools, Cluster, Floats, Ints, Rows
from calabash.sched.demand import Demand
from calabash.sched.fit import Compiled
from calabash.sched.policies.protocol import Devices, Scored, Scorer, ScorerBase
from calabash.sched.shape import WHOLE_MILLI, Shape
from calabash.sched.tables import Tables, learn, neutral, piecewise

LEARN_FIRST = 200
LEARN_GROWTH = 3.0
DRIFT_MIN = 0.15
BLOCKS_PER_NODE_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PgbWeights:
    """Weights of the potential's terms, in cards; see the module's formula."""

    square: float = 0.2
    cpu: float = 0.4
    fragment: float = 0.05
    block: float = 0.1
    model: float = 0.3
    memory: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PgbPolicy:
    """PGB. With ``demand`` the tables are learned from it once; without, from the arrivals as they come."""

    demand: Demand | None = None
    weights: PgbWeights = field(default_factory=PgbWeights)
    name: str = "pgb"

    def bind(self, cluster: Cluster) -> Scorer:
        return _Pgb(cluster, self.demand, self.weights)


class _Pgb(ScorerBase):
    def __init__(self, cluster: Cluster, demand: Demand | None, weights: PgbWeights) -> None:
        super().__init__(cluster)
        self._weights = weights
        self._learning = demand is None
        self._seen: dict[Shape, int] = {}
        self._seen_count = 0
        self._next_look = LEARN_FIRST
        self._learned = demand or Demand()
        self._adopt(neutral() if demand is None else learn(demand, cluster))

    # ---------------------------------------------------------------------------------------- learning
    def observe(self, shape: Shape) -> None:
        if not self._learning:
            return
        self._seen[shape] = self._seen.get(shape, 0) + 1
        self._seen_count += 1
        if self._seen_count >= self._next_look:
            self._next_look = int(self._seen_count * LEARN_GROWTH)
            demand = Demand(dict(self._seen))
            if not self._learned.counts or demand.distance(self._learned) > DRIFT_MIN:
                self._learned = demand
                self._adopt(learn(demand, self.cluster))

    def _adopt(self, tables: Tables) -> None:
        """Fold the tables into one look-up per interval of free CPU."""
        self.version += 1
        self._tables = tables
        self._static_version = -1
        typical = self._learned.typical()
        blocks = tables.blocks
        breaks = {cpu for (cpu, _, _, _), _ in typical}
        breaks |= {cpu * times for _, cpu, _ in blocks for times in range(1, BLOCKS_PER_NODE_MAX + 1)}
        self._breaks = np.array(sorted(breaks), np.int64)
        gaps = np.arange(WHOLE_MILLI + 1)
        worth = tables.gap_value + self._weights.square * (gaps / WHOLE_MILLI) ** 2
        worth -= worth[0]
        floor = np.append(-1, self._breaks)  # the least free CPU of each interval
        fragment = np.zeros((len(floor), WHOLE_MILLI + 1))
        for (cpu, milli, _count, _), share in typical:
            unused = np.ones_like(fragment, np.bool_)
            if milli:
                unused[floor >= cpu] = gaps < milli
            fragment += share * unused
        # potential of one device by (interval, gap); padding columns have gap 0 and potential 0
        self._device = -worth[None, :] + self._weights.fragment * fragment * gaps / WHOLE_MILLI
        width = self.cluster.width + 1
        room = np.zeros((len(floor), width))
        for devices, cpu, weight in blocks:
            by_cpu = np.maximum(floor, 0) // cpu
            by_free = np.arange(width) // devices
            room += weight * np.minimum(by_cpu[:, None], by_free[None, :])
        self._room = -self._weights.block * room
        self._has_blocks = bool(blocks)
        self._deltas: dict[int, Floats] = {}

    def _scarcity(self) -> None:
        cluster = self.cluster
        self._static_version = cluster.static_version
        by_model = np.array([self._tables.scarcity.get(name, 0.0) for name in cluster.models])
        self._scarce = self._weights.model * by_model[cluster.gpu_model[:, 0]]
        self._has_scarce = bool(by_model.any())

    # ---------------------------------------------------------------------------------------- scoring
    def score(self, compiled: Compiled, rows: Rows) -> Scored:
        if self._static_version != self.cluster.static_version:
            self._scarcity()
        cluster, shape = self.cluster, compiled.shape
        gaps: Ints = cluster.gpu_free_milli[rows]
        fitting = compiled.devices(rows, gaps) if shape.gpu_count else None
        ok = compiled.nodes(rows, fitting)
        cpu = cluster.cpu_free_milli[rows]
        left = cpu - shape.cpu_milli
        total = cluster.gpu_sum_milli[rows] / WHOLE_MILLI
        before = self._breaks.searchsorted(cpu, side="right")
        after = self._breaks.searchsorted(left, side="right")
        growth = self._starved(left, total - shape.gpu_total_milli / WHOLE_MILLI) - self._starved(cpu, total)
        devices: Devices | None = None
        growth += self._device[after[:, None], gaps].sum(axis=1) - self._device[before[:, None], gaps].sum(axis=1)
        if self._has_blocks:
            free = (gaps == WHOLE_MILLI).sum(axis=1)
            growth -= self._room[before, free]
        if shape.fraction and fitting is not None:
            cost, devices = self._shared(compiled, rows, gaps, fitting, after)
            growth += cost
        elif shape.gpu_count:
            growth += shape.gpu_count * self._delta(shape.gpu_milli or WHOLE_MILLI)[after, WHOLE_MILLI]
            if self._has_blocks:
                growth += self._room[after, np.maximum(free - shape.gpu_count, 0)]
        elif self._has_blocks:
            growth += self._room[after, free]
        if self._has_scarce and shape.gpu_count:
            growth += self._scarce[rows] * (shape.gpu_total_milli / WHOLE_MILLI)
        growth[~ok] = np.inf
        return -growth, devices

    def _shared(
        self, compiled: Compiled, rows: Rows, gaps: Ints, fitting: Bools, after: Rows
    ) -> tuple[Floats, Devices]:
        """Least growth over the devices of each row for a share, and the device."""
        shape, cluster = compiled.shape, self.cluster
        cost = self._delta(shape.gpu_milli)[after[:, None], gaps]
        if self._has_blocks:
            free = (gaps == WHOLE_MILLI).sum(axis=1)
            kept = self._room[after, free]
            broken = self._room[after, np.maximum(free - 1, 0)]
            cost = cost + np.where(gaps == WHOLE_MILLI, broken[:, None], kept[:, None])
        if cluster.gpu_tracked and shape.gpu_memory_mib:
            cost = cost + self._weights.memory * self._imbalance(shape, rows, gaps)
        cost = np.where(fitting, cost, np.inf)
        chosen = cost.argmin(axis=1)
        return cost[np.arange(len(rows)), chosen], chosen.astype(np.int8)

    def _imbalance(self, shape: Shape, rows: Rows, gaps: Ints) -> Floats:
        whole = np.maximum(self.cluster.gpu_mib[rows], 1)
        memory = self.cluster.gpu_free_mib[rows]
        compute = gaps / WHOLE_MILLI
        growth: Floats = np.abs(compute - shape.gpu_milli / WHOLE_MILLI - (memory - shape.gpu_memory_mib) / whole)
        growth -= np.abs(compute - memory / whole)
        return growth

    def _delta(self, milli: int) -> Floats:
        """[interval, gap] growth of one device's potential when ``milli`` is taken from a gap."""
        found = self._deltas.get(milli)
        if found is None:
            found = np.full_like(self._device, np.inf)
            found[:, milli:] = self._device[:, : WHOLE_MILLI + 1 - milli] - self._device[:, milli:]
            self._deltas[milli] = found
        return found

    def _starved(self, cpu_milli: Ints, cards: Floats) -> Floats:
        """Cards that will end up without CPU, weighed."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(cards > 1e-9, np.maximum(cpu_milli, 0) / (1000.0 * np.maximum(cards, 1e-9)), 1e9)
        found: Floats = self._weights.cpu * cards * (1.0 - piecewise(self._tables.fed_share, ratio))
        return found
