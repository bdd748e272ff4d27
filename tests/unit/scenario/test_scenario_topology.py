"""Tests of levels, domains and topology requests in scenario files: strict parsing, and the same after a dump."""

from __future__ import annotations

import pytest

from calabash.scenario.dump import dump_scenario
from calabash.scenario.reader import parse_scenario
from calabash.scenario.statements import AsksLine, NodesLine, ScenarioError
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.topology import GangTopology


def test_levels_domains_and_topology_are_the_same_after_dump_and_parse() -> None:
    levels = ("block", "rack")
    nodes = [
        NodeSpec(
            name=f"n{i}", cpu_milli=1000, memory_mib=1024, gpus=(GpuSpec(model="T4", memory_mib=16384),), domains=path
        )
        for i, path in enumerate([("b1", "r1"), ("b1",), ()])
    ]
    scheduler = Scheduler(nodes, [QueueSpec(name="q")], levels=levels)
    topologies = [
        GangTopology(required="block", preferred="node", slice_level="rack", slice_size=2, group="x"),
        GangTopology(preferred="rack"),
    ]
    for rank, topology in enumerate(topologies):
        shape = Shape(gpu_count=1, gpu_milli=1000)
        scheduler.submit(
            Request(id=f"q/g{rank}", queue="q", shape=shape, gang="g", min_member=9, topology=topology, rank=rank)
        )
    parsed = parse_scenario(dump_scenario(scheduler.snapshot(), rule="round trip"))
    assert parsed.levels == levels
    paths = {name: s.domains for _, s in parsed.statements if isinstance(s, NodesLine) for name in s.names}
    assert paths == {node.name: node.domains for node in nodes}
    asked = [s.request for _, s in parsed.statements if isinstance(s, AsksLine)]
    assert [(request.topology, request.rank) for request in asked] == list(zip(topologies, (0, 1), strict=True))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("levels block rack rack", "level 'rack'"),
        ("levels node", "level 'node'"),
        ("levels block\nlevels rack", "given twice"),
        ("nodes n: 1 x T4, topology b1", "1 domains, and there are 0 levels"),
        ("levels rack\nnodes n: 1 x T4, topology b1/r1", "2 domains, and there are 1 levels"),
        ("levels block rack\nnodes n: 1 x T4, topology b1/", "name ''"),
        ("levels rack\nasks q/a: 1 gpu, topology required=row", "level 'row' does not exist"),
        ("levels rack\nasks q/a: 1 gpu, topology required=rack required=rack", "not part of a topology request"),
        ("levels rack\nasks q/a: 1 gpu, topology near=rack", "not part of a topology request"),
        ("levels rack\nasks q/a: 1 gpu, topology slice=rack", "not a level and a size"),
        ("levels rack\nasks q/a: 1 gpu, topology slice=rack:0", "slice size 0"),
        ("levels rack\nasks q/a: 1 gpu, topology", "names no level"),
    ],
)
def test_invalid_topology_is_an_error_with_its_line(line: str, message: str) -> None:
    text = f"rule r\n{line}\nthen nothing\n"
    with pytest.raises(ScenarioError, match=f"scenario:{2 + line.count(chr(10))}: .*{message}"):
        parse_scenario(text)


def test_requests_of_one_line_are_ranked_in_their_order() -> None:
    text = "rule r\nlevels rack\nasks q/a: 12 x 1 gpu, gang, topology required=rack\nthen nothing\n"
    asked = [s.request for _, s in parse_scenario(text).statements if isinstance(s, AsksLine)]
    assert [(request.id, request.rank) for request in asked[-3:]] == [("q/a9", 9), ("q/a10", 10), ("q/a11", 11)]
