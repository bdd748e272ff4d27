"""Tests of the simulation of gangs in a network, and of the rules of other schedulers in it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from bench import topology as bench_topology
from bench._report import Report

from calabash.model.errors import CalabashError
from calabash.sched.cluster.domains import Domains, domains_of
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.topology import GangTopology
from calabash.sim.gang_network import NAMES, NONE, OWN, Gang, GangNetwork, random_gangs
from calabash.sim.gang_rules import RULES, kai_rule, kueue_rule

LEVELS = ("block", "rack")
ONE = Shape(gpu_count=1, gpu_milli=1000)
RACK = GangTopology(preferred="rack")


def nodes(racks: list[list[int]], per_block: int = 2) -> list[NodeSpec]:
    return [
        NodeSpec(
            name=f"n{r}.{n}",
            cpu_milli=1000,
            memory_mib=1000,
            gpus=(GpuSpec(),) * gpus,
            domains=(f"b{r // per_block}", f"r{r}"),
        )
        for r, rack in enumerate(racks)
        for n, gpus in enumerate(rack)
    ]


def gang(name: str, members: int, *, at_s: float = 0.0, run_s: float = 10.0, topology: GangTopology = RACK) -> Gang:
    return Gang(name=name, shape=ONE, members=members, topology=topology, arrives_s=at_s, run_time_s=run_s)


def domains(racks: list[list[int]]) -> Domains:
    return domains_of(GangNetwork(nodes(racks), LEVELS, rule=OWN)._cluster)


@pytest.mark.parametrize("name", NAMES)
def test_second_gang_waits_until_the_first_departs(name: str) -> None:
    gangs = [gang("a", 4), gang("b", 4, at_s=2.0), gang("end", 1, at_s=50.0)]
    figures = GangNetwork(nodes([[2, 2]]), LEVELS, rule=name).run(gangs, warm_up_s=0.0)
    assert (figures.started, figures.waiting) == (2, 0)
    assert figures.waited_mean_s == pytest.approx((0 + 8) / 2)
    assert figures.in_one_ratio == 1.0
    assert figures.nodes_mean == 2.0
    assert figures.used_ratio == pytest.approx(4 * 20 / 4 / 50)


def test_hops_count_the_levels_between_neighbours_in_rank() -> None:
    figures = GangNetwork(nodes([[1, 1], [1], [1]]), LEVELS, rule=OWN).run([gang("a", 4)], warm_up_s=0.0)
    assert figures.domains_mean == 3
    assert figures.hops_mean == pytest.approx((2 + 4 + 6) / 3)  # in the rack, in the block, across blocks


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_places_all_members_within_the_free_devices_or_none(name: str) -> None:
    rng = random.Random(3)
    for case in range(40):
        racks = [[rng.randint(0, 3) for _ in range(3)] for _ in range(4)]
        network = GangNetwork(nodes(racks), LEVELS, rule=name)
        wanted = gang(f"g{case}", rng.randint(1, 20), topology=rng.choice([RACK, GangTopology(required="block")]))
        placements = network.place(wanted)
        blocks = [sum(map(sum, racks[i : i + 2])) for i in (0, 2)]
        room = max(blocks) if wanted.topology.required and name != NONE else sum(blocks)
        assert (placements is not None) == (room >= wanted.members)
        if placements is not None:
            assert len(placements) == len({(p.node, p.devices) for p in placements}) == wanted.members


def test_rule_of_kueue_takes_the_fullest_domain_and_then_the_fewest_below() -> None:
    racks = [[4, 4], [1, 1], [2, 2], [2, 2]]
    found = kueue_rule(domains(racks), np.array([4, 4, 1, 1, 2, 2, 2, 2]), 7, GangTopology(required="block"))
    assert found == [
        (4, 2),
        (5, 2),
        (6, 2),
        (7, 1),
    ]  # the second block is fuller, although one rack of the first holds 7
    found = kueue_rule(domains(racks), np.array([4, 4, 1, 1, 2, 2, 2, 2]), 9, RACK)
    assert found == [(0, 4), (1, 4), (2, 1)]


def test_rule_of_kai_fills_the_fullest_racks_of_the_domain_first() -> None:
    racks = [[4, 4], [1, 1], [9, 9], [9, 9]]
    assert kai_rule(domains(racks), np.array([4, 4, 1, 1, 9, 9, 9, 9]), 9, RACK) == [(4, 9)]
    free = np.array([4, 4, 1, 1, 0, 0, 0, 0])
    assert kai_rule(domains(racks), free, 9, RACK) == [(2, 1), (3, 1), (0, 4), (1, 3)]


def test_placement_by_topology_needs_no_more_racks_than_the_other_rules() -> None:
    shapes = [Shape(gpu_count=count, gpu_milli=1000) for count in (4, 2, 1)]
    cluster = nodes([[4] * 4 for _ in range(24)], per_block=6)
    gangs = random_gangs(
        count=600,
        load=0.8,
        devices=384,
        sizes=(1, 2, 4, 8, 16),
        shapes=shapes,
        topologies=[RACK],
        run_time_mean_s=60.0,
        seed=1,
    )
    found = {name: GangNetwork(cluster, LEVELS, rule=name).run(gangs, warm_up_s=200.0) for name in NAMES}
    assert all(figures.started > 50 for figures in found.values())
    assert all(found[OWN].domains_mean <= found[name].domains_mean for name in (NONE, *RULES))
    assert found[OWN].hops_mean < found[NONE].hops_mean


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(CalabashError, match="rule 'x'"):
        GangNetwork(nodes([[1]]), LEVELS, rule="x")


def test_tiny_form_of_the_benchmark_reports_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_topology, "SIZES", (1, 2, 4))
    report = Report(name="topology", title="t", quick=True)
    bench_topology.measure_load(report, bench_topology.cluster(48), 0.8, 3.0)
    names = [figure.name for figure in report.figures]
    assert len(names) == 5 * len(NAMES)
    assert all(any(label in name for name in names) for label in bench_topology.LABELS.values())
    own = next(figure for figure in report.figures if "by topology: racks" in figure.name)
    assert own.value >= 1.0
    assert own.goal
