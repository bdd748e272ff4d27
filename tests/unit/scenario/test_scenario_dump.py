"""A snapshot that is written as a scenario decides as the scheduler that it was taken from."""

from __future__ import annotations

from calabash.scenario.dump import dump_scenario
from calabash.scenario.reader import parse_scenario
from calabash.scenario.runner import render, run_scenario
from calabash.scenario.statements import AsksLine, HasLine, NodesLine
from calabash.sched.cluster.shape import Shape, Topology
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Options, Request
from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.spec import UNLIMITED, QueueSpec
from calabash.sched.scheduler import Scheduler


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


def in_the_file(scheduler: Scheduler, line: str) -> str:
    """A rendered decision with the identities and node names that the file uses."""
    words = line.partition("  #")[0].split()
    request = scheduler.registry.request(words[1])
    words[1] = words[1] if words[1].startswith(request.queue + "/") else f"{request.queue}/{words[1]}"
    return " ".join(w for w in words if not w.startswith("for=")).replace("n/1", "n-1")


def test_a_dumped_scenario_decides_as_the_scheduler_does() -> None:
    scheduler = scheduler_with_everything()
    scheduler.advance(60.0)
    result = run_scenario(parse_scenario(dump_scenario(scheduler.snapshot(), rule="as it was")))
    ours = sorted(in_the_file(scheduler, render(d)) for d in scheduler.cycle(60.0))
    theirs = sorted(line.partition("  #")[0].partition(" for=")[0] for line in result.steps[0].came)
    assert theirs == ours
    assert {line.split()[0] for line in ours} == {"bind", "evict", "pending"}


def test_every_request_and_shape_survives_the_round_trip() -> None:
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
    assert {card for s in read if isinstance(s, NodesLine) for _, _, card in s.models} == {"Z9", ""}
    assert again["a/g0"].shape.selector == ("zone!=b",)
    assert parse_scenario(text).options == scheduler.state.options
