"""Simulation of gangs that arrive, wait, run and depart on a cluster with a network of several levels.

Theory of operation. Gangs wait in one queue in the order of their arrival. After each arrival or departure, all of them are
tried in this order, and those that fit start; a gang that does not fit keeps no other one waiting. So the rules of placement
are compared with equal queueing. A gang is not tried again before the next departure if an equal one, or a smaller one of the
same shape and topology, was refused. After a departure, at most ``REFUSED_MAX`` gangs are
refused before the next event. There are no reservations, evictions or quotas.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from calabash.model.errors import CalabashError
from calabash.sched.actions.free_packing import pack_freely
from calabash.sched.actions.packing import pack
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Rows
from calabash.sched.cluster.domains import Domains, domains_of
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.placer import ClusterPlacer
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import Request
from calabash.sched.policies.registry import policy_named
from calabash.sched.topology import GangTopology
from calabash.sim.gang_rules import RULES

REFUSED_MAX = 4
OWN, NONE = "topology", "none"
NAMES = (OWN, NONE, *RULES)
"""Names of rules: that of the scheduler, placement regardless of topology, and those of ``gang_rules``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A gang of equal members."""

    name: str
    shape: Shape
    members: int
    topology: GangTopology
    arrives_s: float
    run_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFigures:
    """Results of a run, over the gangs of several members that arrived after the warm-up and were started.

    Args:
        started, waiting: number of these gangs that were started, and that still waited at the end.
        in_one_ratio: share of the gangs that are in one domain of the innermost named level.
        domains_mean: domains of this level per gang. nodes_mean: nodes per gang.
        hops_mean: hops in the tree of domains between members of successive ranks.
        waited_mean_s, waited_p95_s: time from arrival to start.
        used_ratio: used divided by all devices, averaged over time after the warm-up.
    """

    started: int
    waiting: int
    in_one_ratio: float
    domains_mean: float
    nodes_mean: float
    hops_mean: float
    waited_mean_s: float
    waited_p95_s: float
    used_ratio: float


def random_gangs(
    *,
    count: int,
    load: float,
    devices: int,
    sizes: Sequence[int],
    shapes: Sequence[Shape],
    topologies: Sequence[GangTopology],
    run_time_mean_s: float,
    seed: int,
    initial: int = 0,
) -> list[Gang]:
    """Return gangs with Poisson arrivals and exponential run times, whose mean use of the devices is ``load``.

    Args:
        devices: number of devices of the cluster.
        initial: number of gangs that arrive at time 0, as if the load had been there before.
        sizes, shapes, topologies: a number of members, a shape and a topology are chosen at random for each gang.
    """
    rng = random.Random(seed)  # noqa: S311  a simulation, not a secret
    use = fmean(sizes) * fmean(s.gpu_count * s.gpu_milli / WHOLE_MILLI for s in shapes) * run_time_mean_s
    at_s = 0.0
    gangs = []
    for number in range(count):
        at_s += rng.expovariate(load * devices / use) if number >= initial else 0.0
        gangs.append(
            Gang(
                name=f"g{number}",
                shape=rng.choice(shapes),
                members=rng.choice(sizes),
                topology=rng.choice(topologies),
                arrives_s=at_s,
                run_time_s=rng.expovariate(1.0 / run_time_mean_s),
            )
        )
    return gangs


class GangNetwork:
    """Simulation of gangs on one cluster by one rule.

    Args:
        rule: one of ``NAMES``.
        policy: placement policy for nodes, where the rule is ``NONE``.
    """

    def __init__(self, nodes: Sequence[NodeSpec], levels: Sequence[str], *, rule: str, policy: str = "bestfit") -> None:
        if rule not in NAMES:
            raise CalabashError(f"rule {rule!r} does not exist", hint=f"use one of: {', '.join(NAMES)}")
        self._rule = rule
        self._cluster = Cluster(nodes, levels=levels)
        self._placer = ClusterPlacer(self._cluster, Engine(self._cluster, policy_named(policy)))
        self._transaction = Transaction(self._placer)
        self._domains: Domains = domains_of(self._cluster)
        self._level = self._domains.last_level - 1

    def run(self, gangs: Iterable[Gang], *, warm_up_s: float) -> NetworkFigures:
        """Run until the last gang has arrived, and return the figures."""
        run = _Run(warm_up_s=warm_up_s)
        events: list[tuple[float, int, str]] = [(gang.arrives_s, 0, gang.name) for gang in gangs]
        by_name = {gang.name: gang for gang in gangs}
        heapq.heapify(events)
        arrivals = len(events)
        waiting: dict[str, Gang] = {}
        running: dict[str, list[NodePlacement]] = {}
        refused: dict[tuple[Shape, GangTopology], int] = {}
        while arrivals:
            at_s, kind, name = heapq.heappop(events)
            gang = by_name[name]
            run.advance(at_s)
            if kind:
                for placement in running.pop(name):
                    self._cluster.release(gang.shape, placement)
                run.used -= gang.members * gang.shape.gpu_count
                refused.clear()
                tried = list(waiting.values())
            else:
                arrivals -= 1
                waiting[name] = gang
                tried = [gang]
            for one in tried:
                if len(refused) >= REFUSED_MAX and kind:
                    break
                key = (one.shape, one.topology)
                if one.members >= refused.get(key, one.members + 1):
                    continue
                placements = self.place(one)
                if placements is None:
                    refused[key] = one.members
                    continue
                del waiting[one.name]
                running[one.name] = placements
                run.used += one.members * one.shape.gpu_count
                heapq.heappush(events, (at_s + one.run_time_s, 1, one.name))
                if one.arrives_s >= warm_up_s and one.members > 1:
                    run.waited_s.append(at_s - one.arrives_s)
                    self._measure(run, np.array([p.node for p in placements], np.intp))
        return run.figures(self._cluster.gpu_total, sum(g.arrives_s >= warm_up_s for g in waiting.values()))

    def place(self, gang: Gang) -> list[NodePlacement] | None:
        """Place a gang, and return its placements in the order of ranks; None, with nothing changed, if it does not fit."""
        if self._rule in RULES:
            return self._divide(gang)
        requests = [
            Request(
                id=f"{gang.name}.{rank}", shape=gang.shape, queue="q", gang=gang.name, rank=rank, topology=gang.topology
            )
            for rank in range(gang.members)
        ]
        place = pack if self._rule == OWN else pack_freely
        placed = place(self._transaction, requests).placed
        self._transaction.commit()
        if placed is None:
            return None
        rank_of = {request.id: rank for rank, request in enumerate(requests)}
        return [placement for _, placement in sorted(placed, key=lambda pair: rank_of[pair[0].id])]

    def _divide(self, gang: Gang) -> list[NodePlacement] | None:
        free = np.minimum(self._placer.count(gang.shape)[0][self._domains.rows], gang.members)
        division = RULES[self._rule](self._domains, free, gang.members, gang.topology)
        if division is None:
            return None
        placements = []
        for index, count in division:
            for _ in range(count):
                placement = self._placer.choose_on(gang.shape, int(self._domains.rows[index]))
                assert placement is not None
                self._cluster.place(gang.shape, placement)
                placements.append(placement)
        return placements

    def _measure(self, run: _Run, rows: Rows) -> None:
        """Add the figures of a gang that was started on some nodes, in the order of ranks."""
        run.domains.append(self._domains.count_domains(self._level, rows.tolist()))
        run.nodes.append(len(np.unique(rows)))
        hops = np.zeros(len(rows) - 1)
        for level in range(self._domains.last_level, -1, -1):
            found = np.searchsorted(self._domains.first[level], self._domains.position[rows], side="right")
            hops += 2.0 * (found[1:] != found[:-1])
        run.hops.append(float(hops.mean()))


@dataclass(slots=True, kw_only=True)
class _Run:
    """Sums over one run. ``used`` is the number of devices in use now."""

    warm_up_s: float
    now_s: float = 0.0
    used: int = 0
    used_s: float = 0.0
    waited_s: list[float] = field(default_factory=list)
    domains: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    hops: list[float] = field(default_factory=list)

    def advance(self, to_s: float) -> None:
        self.used_s += self.used * max(0.0, to_s - max(self.now_s, self.warm_up_s))
        self.now_s = to_s

    def figures(self, devices: int, waiting: int) -> NetworkFigures:
        waited = sorted(self.waited_s) or [0.0]
        return NetworkFigures(
            started=len(self.waited_s),
            waiting=waiting,
            in_one_ratio=fmean([count == 1 for count in self.domains] or [0.0]),
            domains_mean=fmean(self.domains or [0.0]),
            nodes_mean=fmean(self.nodes or [0.0]),
            hops_mean=fmean(self.hops or [0.0]),
            waited_mean_s=fmean(waited),
            waited_p95_s=waited[int(0.95 * (len(waited) - 1))],
            used_ratio=self.used_s / devices / max(1e-9, self.now_s - self.warm_up_s),
        )
