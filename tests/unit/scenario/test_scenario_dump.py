"""Tests of scenario files written from snapshots: they lead to the same decisions as the scheduler itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calabash.binder.local.machine import LocalScheduler, Start
from calabash.binder.shapes import host_memory_of
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.mig import MigInstance, MigPart
from calabash.model.request import AllocationId, GpuRequest, ModeName, Selector
from calabash.scenario.dump import dump_scenario
from calabash.scenario.reader import parse_scenario
from calabash.scenario.runner import render, run_scenario
from calabash.scenario.statements import AsksLine, HasLine, NodesLine, ScenarioError, StandsLine
from calabash.sched.amounts import Amount
from calabash.sched.cluster.mig_tables import GEOMETRIES
from calabash.sched.cluster.shape import Shape, Topology
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Options, Request
from calabash.sched.queues.spec import UNLIMITED, QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.updates import set_mig_instances

CARD = Device(uuid=DeviceUuid("GPU-0"), index=0, vendor="acme", model="A100", memory_mib=40_960)


def scheduler_with_everything() -> Scheduler:
    nodes = [
        NodeSpec(
            name="n/1", cpu_milli=64_000, memory_mib=1 << 19, labels={"zone": "a"}, taints=("own=x:NoSchedule",),
            gpus=(GpuSpec(model="NVIDIA Z9", card="Z9", memory_mib=12_345, island=0),) * 4,
        ),
        NodeSpec(name="n2", cpu_milli=32_000, memory_mib=1 << 18, gpus=(GpuSpec(model="T4", memory_mib=16384),) * 2),
        NodeSpec(name="n3", cpu_milli=32_000, memory_mib=1 << 18, gpus=(GpuSpec(model="T4", memory_mib=16384),) * 2),
    ]  # fmt: skip
    queues = [
        QueueSpec(name="org", limit=UNLIMITED._replace(gpu_milli=8000)),
        QueueSpec(name="a", parent="org", deserved=Amount(2000, 4000, 1024)),
        QueueSpec(name="b", parent="org", over_quota_weight=2.5),
    ]
    scheduler = Scheduler(nodes, queues, options=Options(min_run_time_s=30.0, defragment_moves_max=2, preempt=False))
    scheduler.cordon("n3")
    tolerates = frozenset(("own",))
    requests = [
        Request(id="b/r1", queue="b", shape=Shape(gpu_count=1, gpu_milli=500, gpu_memory_mib=4000, cpu_milli=1000)),
        Request(id="r2", queue="b", shape=Shape(gpu_count=1, gpu_milli=1000, models=frozenset(("T4",))), movable=False),
        Request(
            id="r3", queue="b", evictable=False, tenant="t", owner="o", run_time_s=99.0,
            shape=Shape(
                gpu_count=2, gpu_milli=1000, tolerations=tolerates, topology=Topology.NVLINK, topology_required=True
            ),
        ),
    ]  # fmt: skip
    for request in requests:
        scheduler.submit(request)
    scheduler.cycle(10.0)
    for i in range(2):
        scheduler.submit(
            Request(
                id=f"g{i}", queue="a", priority=3, gang="gang", min_member=2, submitted_at_s=50.0,
                shape=Shape(gpu_count=1, gpu_milli=1000, memory_mib=512, selector=("zone!=b",)),
            )
        )  # fmt: skip
    scheduler.submit(Request(id="w", queue="b", shape=Shape(gpu_count=8, gpu_milli=1000), submitted_at_s=55.0))
    return scheduler


def as_in_the_file(scheduler: Scheduler, line: str) -> str:
    """Return a rendered decision with the request IDs and node names of the file."""
    words = line.partition("  #")[0].split()
    request = scheduler.registry.request(words[1])
    words[1] = words[1] if words[1].startswith(request.queue + "/") else f"{request.queue}/{words[1]}"
    return " ".join(w for w in words if not w.startswith("for=")).replace("n/1", "n-1")


def test_dumped_scenario_makes_the_same_decisions_as_the_scheduler() -> None:
    scheduler = scheduler_with_everything()
    scheduler.advance(60.0)
    result = run_scenario(parse_scenario(dump_scenario(scheduler.snapshot(), rule="as it was")))
    ours = sorted(as_in_the_file(scheduler, render(d)) for d in scheduler.cycle(60.0))
    theirs = sorted(line.partition("  #")[0].partition(" for=")[0] for line in result.steps[0].results)
    assert theirs == ours
    assert {line.split()[0] for line in ours} == {"bind", "evict", "pending"}


def test_requests_and_shapes_are_the_same_after_dump_and_parse() -> None:
    scheduler = scheduler_with_everything()
    text = dump_scenario(scheduler.snapshot(), rule="as it was")
    read = [s for _, s in parse_scenario(text).statements]
    running = sorted(
        (s.request.id.rpartition("/")[2], s.request.shape.gpu_total_milli) for s in read if isinstance(s, HasLine)
    )
    waiting = sorted((s.request.id.rpartition("/")[2], s.request.min_member) for s in read if isinstance(s, AsksLine))
    assert running == [("r1", 500), ("r2", 1000), ("r3", 2000)]
    assert waiting == [("g0", 2), ("g1", 2), ("w", 1)]
    again = {s.request.id: s.request for s in read if isinstance(s, HasLine | AsksLine)}
    assert again["b/r3"].shape.topology_required
    assert not again["b/r2"].movable
    assert not again["b/r3"].evictable
    assert again["b/r3"].owner == "o"
    assert {card for s in read if isinstance(s, NodesLine) for _, _, card, _ in s.models} == {"Z9", ""}
    assert again["a/g0"].shape.selector == ("zone!=b",)
    assert parse_scenario(text).options == scheduler.state.options


STANDING = (
    MigInstance(profile="3g.40gb", start=4, fixed=True, parts=(MigPart(start=0, compute=2, kept=True),)),
    MigInstance(profile="1g.10gb", start=0, foreign=True),
)


def scheduler_with_mig_devices() -> Scheduler:
    """Return a scheduler with MIG devices of different models, GPU and compute instances, and waiting requests."""
    gpus = tuple(
        GpuSpec(model=f"GPU-{n}", card="H100", memory_mib=81_152, geometry=GEOMETRIES["H100"]) for n in range(3)
    )
    scheduler = Scheduler([NodeSpec(name="n1", cpu_milli=64_000, memory_mib=1 << 19, gpus=gpus)], [QueueSpec(name="q")])
    set_mig_instances(scheduler, "n1", 2, STANDING)
    shapes = {
        "whole": (1, "4g.40gb"), "part": (1, "1c.3g.40gb"), "beside": (1, "1c.3g.40gb"), "two": (2, "1g.10gb"),
        "pod": (1, "2g.20gb&1g.10gb"), "media": (1, "1g.10gb+me"),
    }  # fmt: skip
    for name, (count, profile) in shapes.items():
        scheduler.submit(Request(id=f"q/{name}", queue="q", shape=Shape(gpu_count=count, mig_profile=profile)))
    scheduler.cycle(10.0)
    for number in range(3):
        shape = Shape(gpu_count=1, mig_profile=("1c.3g.40gb", "3g.40gb", "2c.3g.40gb")[number])
        scheduler.submit(Request(id=f"q/w{number}", queue="q", shape=shape, submitted_at_s=50.0))
    return scheduler


def test_mig_positions_are_the_same_after_dump_and_parse() -> None:
    scheduler = scheduler_with_mig_devices()
    snapshot = scheduler.snapshot()
    assert len(snapshot.running) == 6
    text = dump_scenario(snapshot, rule="as it was")
    statements = [s for _, s in parse_scenario(text).statements]
    (nodes,) = [s for s in statements if isinstance(s, NodesLine)]
    assert {geometry for *_, geometry in nodes.models} == {GEOMETRIES["H100"]}
    assert [s.instances for s in statements if isinstance(s, StandsLine)] == [STANDING]
    has = {s.request.id: (s.devices, s.places) for s in statements if isinstance(s, HasLine)}
    assert has == {r.request.id: (r.placement.devices, r.placement.mig_places) for r in snapshot.running}
    assert {place.part for _, places in has.values() for one in places for place in one} == {-1, 2}
    result = run_scenario(parse_scenario(text))
    ours = sorted(render(d).partition("  #")[0] for d in scheduler.cycle(60.0))
    assert sorted(line.partition("  #")[0] for line in result.steps[0].results) == ours
    assert any(line.startswith("bind") for line in ours)


@pytest.mark.parametrize(
    "line",
    [
        "geometry g1: many slices", "geometry g1: 8 slices 7 compute, 1g 1c 1s 0 x1 1GiB",
        "geometry g1: 8 slices 7 compute, 1g.10gb 1c 1s x x1 1GiB", "nodes n1: 1 x H100 cut g9", "stands n1 1g.10gb@0",
        "stands n1:0 1g.10gb", "stands n1:0 1g.10gb@0 perhaps", "has q/a: 1g.10gb, on n1:0@x",
    ],
)  # fmt: skip
def test_invalid_mig_statement_is_an_error_with_its_line(line: str) -> None:
    with pytest.raises(ScenarioError, match="scenario:2:"):
        parse_scenario(f"rule x\n{line}\nthen nothing\n")


def test_replicas_and_spill_memory_are_kept_after_dump_and_parse() -> None:
    """Use devices with 4 and 3 replicas, and two requests with spill on a node with spill memory for one."""
    in_turns = [
        replace(CARD, uuid=DeviceUuid(f"GPU-{i}"), index=i, replicas=4 - i, spill_mib=30 << 10) for i in range(2)
    ]
    local = LocalScheduler(NodeName("here"), in_turns, [QueueSpec(name="default")], memory_mib=host_memory_of(in_turns))
    turns = GpuRequest(mode=ModeName("timeslice"), selector=Selector(uuids=(DeviceUuid("GPU-0"),)))
    spilling = GpuRequest(memory_mib=50 << 10, spill_mib=20 << 10, core_percent=30)
    for i in range(5):
        local.submit(AllocationId(f"t{i}"), turns, submitted_at_s=float(i))
    for i in range(2):
        local.submit(AllocationId(f"s{i}"), spilling, submitted_at_s=10.0 + i)
    for i in range(2):
        local.submit(
            AllocationId(f"m{i}"),
            replace(turns, memory_mib=8192, selector=Selector(uuids=(DeviceUuid("GPU-1"),))),
            submitted_at_s=20.0 + i,
        )
    local.scheduler.advance(30.0)
    snapshot = local.scheduler.snapshot()
    text = dump_scenario(snapshot, rule="as it was")
    read = {s.request.id: s.request.shape for _, s in parse_scenario(text).statements if isinstance(s, AsksLine)}
    for request in snapshot.waiting:
        shape = read[f"default/{request.id}"]
        kept = (request.shape.gpu_milli, request.shape.gpu_memory_mib, request.shape.memory_mib, request.shape.mode)
        assert (shape.gpu_milli, shape.gpu_memory_mib, shape.memory_mib, shape.mode) == kept
    assert {shape.gpu_milli for name, shape in read.items() if "/t" in name} == {250}
    assert {shape.gpu_milli for name, shape in read.items() if "/m" in name} == {333}
    result = run_scenario(parse_scenario(text))
    theirs = sorted(line.split()[1] for line in result.steps[0].results if line.startswith("bind"))
    ours = sorted(f"default/{d.id}" for d in local.cycle(30.0) if isinstance(d, Start))
    assert theirs == ours
    assert {"default/t3", "default/s0"} <= set(ours)
    assert "default/t4" not in ours
    assert "default/s1" not in ours
