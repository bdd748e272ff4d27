"""Random histories of a small cluster, each decided by the scheduler and checked by the ledger after every cycle."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

from tests.oracle.ledger import CARD_MIB, LATE_MAX_S, SLICES_MAX, Ledger, ViolationError

from calabash.model.errors import CalabashError
from calabash.sched import UNLIMITED, Amount, GpuSpec, NodeSpec, Options, QueueSpec, Request, Scheduler, Shape
from calabash.sched.cluster.mig_tables import geometry_of
from calabash.sched.rounds import CycleLimit

MODELS = {"A100-80": CARD_MIB, "H200": 143_360, "L4": 24_576}
SETTLE_MAX = 200
REQUESTS_MAX = 40


def _device_shape(rng: random.Random, *, simple: bool) -> Shape:
    """Return a shape without host resources, or of host resources alone."""
    kind = (
        "exclusive"
        if simple
        else rng.choice(["exclusive", "exclusive", "vgpu", "mps", "timeslice", "mig", "many", "host"])
    )
    if kind == "host":
        return Shape(cpu_milli=1000, memory_mib=2048)
    if kind == "mig":
        return Shape(gpu_count=1, mig_profile=rng.choice(("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb")))
    models = frozenset({rng.choice(list(MODELS))}) if not simple and rng.random() < 0.2 else frozenset()
    if kind == "exclusive":
        count = 1 if simple else rng.choice((1, 1, 1, 2, 4))
        return Shape(gpu_count=count, gpu_milli=1000, mode="exclusive", gpu_slices=1, gpu_slices_max=1, models=models)
    mode = rng.choice(("vgpu", "mps")) if kind == "many" else kind
    return Shape(
        gpu_count=1,
        gpu_milli=1 if kind == "many" else 0 if kind == "timeslice" else rng.choice((100, 250, 400, 700)),
        gpu_memory_mib=64 if kind == "many" else rng.choice((2048, 8192, 20_000, 40_000)),
        gpu_slices=rng.choice((8, 16)) if kind == "many" else 1,
        gpu_slices_max=SLICES_MAX[mode],
        mode=mode,
        models=models)  # fmt: skip


def random_shape(rng: random.Random, *, simple: bool) -> Shape:
    """Return a random shape with host resources; ``simple`` returns one whole device without host resources."""
    shape = _device_shape(rng, simple=simple)
    if simple or not shape.gpu_count:
        return shape
    return replace(shape, cpu_milli=rng.choice((0, 500, 4000)), memory_mib=rng.choice((0, 1024)))


class History:
    """One random cluster with its scheduler and its ledger.

    Args:
        limited: let a cycle attempt a few requests only, on a clock that advances each time it is read.
        changing: also decide about single requests, adopt and unbind some, cordon nodes, and change queues.
    """

    def __init__(self, seed: int, *, limited: bool = False, changing: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.simple = seed % 3 == 0
        self._changing = changing
        self.now_s = 0.0
        self._number = 0
        nodes = [self._node() for _ in range(rng.randint(1, 4))]
        self._total = 1000 * sum(len(node.gpus) for node in nodes)
        queues = self._queues(self._total)
        self.leaves = [q.name for q in queues if all(c.parent != q.name for c in queues)]
        timed = seed % 7 == 3  # with a minimum run time, and with past use
        self.options = Options(
            min_run_time_s=200.0 if timed and seed % 2 else 0.0,
            half_life_s=1000.0 if timed and seed % 3 == 1 else 0.0,
            reservations=0 if self.simple else rng.choice((0, 0, 1, 2)),
            defragment_moves_max=0 if self.simple else rng.choice((0, 0, 3)),
            reclaim_fair_share=rng.random() < 0.5,
            fraction_memory_mib=CARD_MIB,
        )
        clock = itertools.count()
        limit = CycleLimit(clock=lambda: float(next(clock)), limit_s=2.0 + seed % 7) if limited else None
        self.scheduler = Scheduler(nodes, queues, options=self.options, gpus_per_node_max=8, limit=limit)
        self.ledger = Ledger(nodes, queues, min_run_time_s=self.options.min_run_time_s)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _node(self) -> NodeSpec:
        model = self.rng.choice(list(MODELS))
        gpus = tuple(self._gpu(model) for _ in range(self.rng.choice((1, 2, 4))))
        return NodeSpec(name=f"n{self._next()}", cpu_milli=32_000, memory_mib=65_536, gpus=gpus)

    def _gpu(self, model: str) -> GpuSpec:
        """Return a device; some devices of a model with MIG are pinned to that mode, some may change to it."""
        can_cut = not self.simple and model == "A100-80"
        kept = can_cut and self.rng.random() < 0.4
        geometry = geometry_of(model, CARD_MIB) if can_cut and not kept and self.rng.random() < 0.5 else None
        return GpuSpec(model=model, memory_mib=MODELS[model], mode="mig" if kept else "", geometry=geometry)

    def _queues(self, total: int) -> list[QueueSpec]:
        rng = self.rng

        def limit(deserved: int) -> Amount:
            return self._limit(total, deserved)

        names, queues = ["a", "b", "c"][: rng.randint(1, 3)], []
        for name in names:
            deserved = rng.randrange(0, total // len(names) + 1, 500)
            queues.append(QueueSpec(name=name, deserved=Amount(deserved), limit=limit(deserved)))
        if not self.simple:
            for name in names:
                children = [f"{name}{number}" for number in range(rng.choice((0, 2)))]
                queues.extend(QueueSpec(name=child, parent=name, limit=limit(0)) for child in children)
        return queues

    def _limit(self, total: int, deserved: float) -> Amount:
        if self.rng.random() < 0.4:
            return UNLIMITED._replace(gpu_milli=max(deserved, self.rng.randrange(0, total + 1, 500)))
        return UNLIMITED

    # ---- events ---------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Submit one request, or a gang."""
        if len(self.ledger.requests) >= REQUESTS_MAX:
            return
        rng, number = self.rng, self._next()
        members = 1 if self.simple else rng.choice((1, 1, 1, 1, 2, 3))
        minimum = rng.randint(2, members) if members > 1 else 1
        shape, queue = random_shape(rng, simple=self.simple), rng.choice(self.leaves)
        priority, evictable = rng.choice((0, 0, 1)), self.simple or rng.random() < 0.8
        run_time_s = rng.choice((None, 60.0, 600.0))
        for member in range(members):
            request = Request(
                id=f"r{number}.{member}", shape=shape, queue=queue, priority=priority, evictable=evictable,
                submitted_at_s=self.now_s, run_time_s=run_time_s, min_member=minimum,
                gang=f"g{number}" if members > 1 else "",
            )  # fmt: skip
            self.ledger.submitted(request)
            self.scheduler.submit(request)

    def end(self) -> None:
        """End one request with its gang."""
        if self.ledger.requests:
            chosen = self.ledger.requests[self.rng.choice(list(self.ledger.requests))]
            mates = [r.id for r in self.ledger.requests.values() if r.gang and r.gang == chosen.gang] or [chosen.id]
            for name in mates:
                self.ledger.ended(name)
                self.scheduler.finished(name)

    def join(self) -> None:
        """Add a node."""
        if len(self.ledger.nodes) < 6:
            node = self._node()
            self.ledger.node_added(node)
            self.scheduler.add_node(node)

    def lose(self) -> None:
        """Remove a node."""
        if len(self.ledger.nodes) > 1:
            name = self.rng.choice(list(self.ledger.nodes))
            assert set(self.scheduler.remove_node(name)) == self.ledger.node_lost(name)

    def health(self) -> None:
        """Make a device unhealthy, or healthy again."""
        name = self.rng.choice(list(self.ledger.nodes))
        device = self.rng.randrange(len(self.ledger.nodes[name].gpus))
        healthy = (name, device) in self.ledger.unhealthy
        self.ledger.health(name, device, healthy=healthy)
        self.scheduler.set_health(name, device, healthy=healthy)

    def decide(self) -> None:
        """Submit a request, and call ``decide`` for the last waiting request."""
        self.submit()
        waiting = self.ledger.waiting()
        if waiting:
            self.ledger.asked()
            decisions = self.scheduler.decide(waiting[-1].id, self.now_s)
            self.ledger.decided(decisions, self.now_s, self.scheduler.wake_at_s())

    def adopt(self) -> None:
        """Adopt a running request at a placement where it fits."""
        if len(self.ledger.requests) >= REQUESTS_MAX:
            return
        shape, queue = random_shape(self.rng, simple=self.simple), self.rng.choice(self.leaves)
        request = Request(id=f"r{self._next()}.0", shape=shape, queue=queue, submitted_at_s=self.now_s)
        try:
            running = self.scheduler.adopt(request, started_at_s=self.now_s)
        except CalabashError:
            return
        self.ledger.adopted(request, running.node, running.placement, self.now_s)

    def unbind(self) -> None:
        """Unbind a random running request, as if its bind had failed."""
        if self.ledger.running:
            name = self.rng.choice(list(self.ledger.running))
            self.ledger.unbound(name)
            self.scheduler.unbind(name)

    def cordon(self) -> None:
        """Cordon a node, or make it schedulable again."""
        name = self.rng.choice(list(self.ledger.nodes))
        schedulable = name in self.ledger.cordoned
        self.ledger.cordon(name, schedulable=schedulable)
        self.scheduler.cordon(name, schedulable=schedulable)

    def change_queues(self) -> None:
        """Change the deserved amount and the limit of one queue."""
        queues = list(self.ledger.queues.values())
        at = self.rng.randrange(len(queues))
        deserved = self.rng.randrange(0, self._total // len(queues) + 1, 500)
        queues[at] = replace(queues[at], deserved=Amount(deserved), limit=self._limit(self._total, deserved))
        self.ledger.queues_set(queues)
        self.scheduler.set_queues(queues)

    # ---- cycles ---------------------------------------------------------------------------------------------------

    def cycle(self) -> bool:
        """Run and check one cycle; return True if it started, evicted or moved a request."""
        decisions = self.scheduler.cycle(self.now_s)
        return self.ledger.decided(decisions, self.now_s, self.scheduler.wake_at_s())

    def _settle(self) -> int:
        """Run the cycles that are due within LATE_MAX_S; return the number of those that acted."""
        acted = 0
        for _ in range(SETTLE_MAX):
            wake_at_s = self.scheduler.wake_at_s()
            if wake_at_s is None or wake_at_s > self.now_s + LATE_MAX_S:
                return acted
            self.now_s = max(self.now_s, wake_at_s)
            did = self.cycle()
            acted += did
            if self.options.half_life_s and not did:
                return acted  # with past use a cycle is due in each period in any case
        raise ViolationError("loop", f"after {SETTLE_MAX} cycles without an event another one is due")

    def run(self, cycles: int) -> int:
        """Run the history; return the number of cycles that acted."""
        acted = 0
        events: list[Callable[[], None]] = [self.submit] * 8 + [self.end] * 5 + [self.health] + [self.join, self.lose]
        if self._changing:
            events += [self.decide] * 4 + [self.adopt, self.unbind, self.cordon, self.change_queues]
        for step in range(cycles):
            self.now_s += self.rng.choice((0.0, 1.0, 30.0, 300.0, 700.0))
            if step % 4 != 3:  # else only time passes
                for _ in range(self.rng.randint(1, 3)):
                    self.rng.choice(events)()
            acted += self.cycle() + self._settle()
            if not self.options.reservations:
                self.ledger.check_starts()
            if self.simple and not self.options.min_run_time_s:
                self.ledger.check_reclaim()
            self.ledger.finish()
        return acted
