"""Gangs in a network of three levels: placement by topology beside placement without it and the rules of two schedulers.

5,000 nodes of 8 devices in zones, blocks and racks; gangs of 1 to 64 members arrive, run and depart. Of the gangs, two thirds
prefer one rack; the others require one block. The rules of Kueue and KAI are written from their published descriptions
(``calabash.sim.gang_rules``) and get the same counts of members per node. Each rule has the same gangs and the same queue:
in the order of arrival, without reservations. Waiting times are virtual.
"""

from __future__ import annotations

from bench._reference import add_cpu_time, cpu_time
from bench._report import Report, run
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.topology import GangTopology
from calabash.sim.gang_network import NAMES, NONE, OWN, GangNetwork, NetworkFigures, random_gangs

LEVELS = ("zone", "block", "rack")
DEVICES = 8
IN_RACK, IN_BLOCK, IN_ZONE = 16, 128, 1024
SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 64)
SHAPES = [Shape(gpu_count=count, gpu_milli=1000) for count in (8, 8, 8, 4, 4, 2, 1, 1)]
TOPOLOGIES = [GangTopology(preferred="rack"), GangTopology(preferred="rack"), GangTopology(required="block")]
RUN_TIME_S = 3600.0
LABELS = {OWN: "by topology", NONE: "without topology", "kueue": "rule of Kueue", "kai": "rule of KAI"}
DECISION = 50  # CPU units


def cluster(nodes: int) -> list[NodeSpec]:
    gpus = tuple(GpuSpec(model="H100", memory_mib=81920) for _ in range(DEVICES))
    return [
        NodeSpec(
            name=f"n{i}",
            cpu_milli=192_000,
            memory_mib=1 << 21,
            gpus=gpus,
            domains=(f"z{i // IN_ZONE}", f"b{i // IN_BLOCK}", f"r{i // IN_RACK}"),
        )
        for i in range(nodes)
    ]


def measure_decision(report: Report, nodes: list[NodeSpec]) -> None:
    """Measure the cycle that starts a gang of 512 members, which need whole nodes and parts of nodes in turn."""
    scheduler = Scheduler(nodes, [QueueSpec(name="q")], levels=LEVELS)
    times = []
    for number, shape in enumerate([SHAPES[0], SHAPES[-1], SHAPES[0], SHAPES[-1]]):
        topology = GangTopology(required="zone", preferred="rack")
        for rank in range(512):
            name, gang = f"g{number}.{rank}", f"g{number}"
            request = Request(id=name, queue="q", shape=shape, gang=gang, min_member=512, topology=topology, rank=rank)
            scheduler.submit(request)
        with cpu_time() as took:
            decisions = scheduler.cycle(float(number))
        assert sum(isinstance(decision, Bind) for decision in decisions) == 512
        times.append(took)
    best = min(times[1:], key=lambda one: one.units)
    add_cpu_time(report, f"gang of 512 on {len(nodes):,} nodes, decided", best, at_most=DECISION, detail="best of 3")


def measure_load(report: Report, nodes: list[NodeSpec], load: float, turnovers: float) -> None:
    """Measure the gangs that arrive between one mean run time and ``turnovers`` mean run times after the start."""
    devices = len(nodes) * DEVICES
    per_run_time = load * devices / (sum(SIZES) / len(SIZES) * sum(s.gpu_count for s in SHAPES) / len(SHAPES))
    gangs = random_gangs(
        count=int(per_run_time * (1 + turnovers)),
        initial=int(per_run_time),
        load=load,
        devices=devices,
        sizes=SIZES,
        shapes=SHAPES,
        topologies=TOPOLOGIES,
        run_time_mean_s=RUN_TIME_S,
        seed=1,
    )
    found = {name: GangNetwork(nodes, LEVELS, rule=name).run(gangs, warm_up_s=RUN_TIME_S) for name in NAMES}
    others = [found[name] for name in NAMES if name != OWN]
    for name in NAMES:
        add_figures(report, f"load {load:g}, {LABELS[name]}", found[name], others if name == OWN else [])


def add_figures(report: Report, prefix: str, figures: NetworkFigures, others: list[NetworkFigures]) -> None:
    """Add the figures of one rule; with ``others``, the best of the other rules are the goals."""

    def best(values: list[float]) -> float | None:
        return min(values) if values else None

    detail = (
        f"{figures.started} gangs started, {figures.waiting} waiting, {figures.used_ratio * 100:.1f} % of devices used"
    )
    report.add(
        f"{prefix}: racks per gang",
        figures.domains_mean,
        "racks",
        at_most=best([o.domains_mean for o in others]),
        detail=detail,
    )
    report.add(f"{prefix}: gangs in one rack", figures.in_one_ratio * 100, "%")
    report.add(f"{prefix}: nodes per gang", figures.nodes_mean, "nodes")
    hops = best([o.hops_mean for o in others])
    report.add(f"{prefix}: hops between neighbours in rank", figures.hops_mean, "hops", at_most=hops)
    report.add(
        f"{prefix}: waiting time, mean",
        figures.waited_mean_s / RUN_TIME_S,
        "runs",
        at_most=best([o.waited_mean_s / RUN_TIME_S for o in others]),
        detail=f"in mean run times of a gang; 95th percentile {figures.waited_p95_s / RUN_TIME_S:.3f}",
    )


def measure(report: Report) -> None:
    """Measure all."""
    nodes = cluster(640 if report.quick else 5_000)
    measure_decision(report, cluster(5_000))
    for load in (0.8, 0.95):
        measure_load(report, nodes, load, turnovers=4.0 if report.quick else 2.5)


if __name__ == "__main__":
    run("topology", "Gangs in the domains of a network", measure)
