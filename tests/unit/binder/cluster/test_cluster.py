"""Many nodes: what is planned is what the sharing modes admit, for requests of several parts as for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.binder.cluster.bundle import MIXED, Bundle, Layout, Part, layout, resolve_bundle
from calabash.binder.cluster.cluster import BundleRequest, ClusterScheduler, StartBundle
from calabash.binder.cluster.device_kinds import NodeDevice, PlacementConstraints
from calabash.binder.cluster.nodes import ClusterNode
from calabash.binder.cluster.upkeep import rebind
from calabash.binder.local.machine import Stop, Wait
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Placement, Selector, Slice
from calabash.sched import Amount, Options, QueueSpec
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_for

QUEUES = [QueueSpec(name="default")]
A100, T4 = ("NVIDIA A100-SXM4-40GB", 40960), ("Tesla T4", 15360)


def device(number: int, kind: tuple[str, int] = A100, *, health: Health = Health.HEALTHY) -> Device:
    return Device(
        uuid=DeviceUuid(f"GPU-{number}"),
        index=number,
        vendor="nvidia",
        model=kind[0],
        memory_mib=kind[1],
        health=health,
    )


def node(name: str, *devices: Device, modes: Sequence[str] = (), foreign_mib: int = 0, **more: object) -> ClusterNode:
    found = tuple(
        NodeDevice(device=d, modes=frozenset(ModeName(m) for m in modes), foreign_mib=foreign_mib)
        for d in devices or (device(0), device(1))
    )
    return ClusterNode(name=NodeName(name), devices=found, labels={}, **more)  # type: ignore[arg-type]


def request(name: str, bundle: Bundle | GpuRequest, *, at_s: float = 0.0, **more: object) -> BundleRequest:
    if isinstance(bundle, GpuRequest):
        bundle = Bundle.single("main", bundle)
    return BundleRequest(id=AllocationId(name), bundle=bundle, submitted_at_s=at_s, **more)  # type: ignore[arg-type]


def together(*requests: GpuRequest) -> Bundle:
    parts = tuple(Part(name=f"c{i}", request=r) for i, r in enumerate(requests))
    return Bundle(parts=parts, phases=(tuple(range(len(parts))),))


def one_by_one(*requests: GpuRequest) -> Bundle:
    parts = tuple(Part(name=f"c{i}", request=r) for i, r in enumerate(requests))
    return Bundle(parts=parts, phases=tuple((i,) for i in range(len(parts))))


def starts(scheduler: ClusterScheduler, now_s: float = 0.0) -> dict[str, StartBundle]:
    return {d.id: d for d in scheduler.cycle(now_s) if isinstance(d, StartBundle)}


SHARE = GpuRequest(memory_mib=8192, core_percent=40)


def test_concurrent_parts_stack_on_one_device_while_they_fit() -> None:
    found = layout(resolve_bundle(together(SHARE, SHARE)).on(device(0)))
    assert found == Layout(
        columns=((0, 1),), mode=ModeName("vgpu"), core_milli=800, memory_mib=2 * (8192 + 32), slices=2, slices_max=64
    )
    three = layout(resolve_bundle(together(SHARE, SHARE, SHARE)).on(device(0)))
    assert isinstance(three, Layout)
    assert three.columns == ((0, 1), (2,))


def test_sequential_parts_are_charged_as_the_largest() -> None:
    small = GpuRequest(memory_mib=1024, core_percent=90)
    found = layout(resolve_bundle(one_by_one(SHARE, small)).on(device(0)))
    assert found == Layout(
        columns=((0, 1),), mode=ModeName("vgpu"), core_milli=900, memory_mib=8192 + 32, slices=1, slices_max=64
    )


def test_parts_of_several_modes_take_whole_devices() -> None:
    found = layout(resolve_bundle(together(GpuRequest(), SHARE)).on(device(0)))
    assert found == Layout(columns=((0,), (1,)), mode=MIXED, core_milli=1000, memory_mib=0)


def test_a_part_that_fits_no_device_says_why() -> None:
    found = layout(resolve_bundle(together(SHARE, GpuRequest(memory_mib=90_000))).on(device(0)))
    assert isinstance(found, Misfit)
    assert found.reason is Reason.TOO_LARGE


requests = st.builds(
    GpuRequest,
    count=st.integers(1, 2),
    memory_mib=st.sampled_from([None, 512, 8192, 20000]),
    core_percent=st.sampled_from([1, 10, 33, 50, 100]),
    mode=st.sampled_from([ModeName(m) for m in ("", "", "vgpu", "exclusive", "timeslice")]),
    policy=st.sampled_from(list(ComputePolicy)),
)
bundles = st.lists(requests, min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from([together(*parts), one_by_one(*parts)])
)


def check(placed: dict[str, tuple[Bundle, StartBundle]], nodes: Mapping[str, tuple[Device, ...]]) -> None:
    """Check that all bundles fit on their devices together, in every combination of their phases."""
    for name, devices in nodes.items():
        for on in devices:
            choices: list[list[list[tuple[GpuRequest, Placement]]]] = []
            for bundle, start in placed.values():
                phases = []
                for phase in bundle.phases:
                    here = [
                        (bundle.parts[n].request, start.placements[n])
                        for n in phase
                        if start.node == name and any(s.device == on.uuid for s in start.placements[n].slices)
                    ]
                    if here:
                        phases.append(here)
                if phases:
                    choices.append(phases)
            worst: list[tuple[GpuRequest, Placement]] = [p for phases in choices for p in max(phases, key=len)]
            modes = {p.mode for phases in choices for phase in phases for _, p in phase}
            if len(choices) > 1:
                assert len(modes) == 1, "tenants of one device in two modes"
            held: list[HeldSlice] = []
            for asked, placement in worst:
                part = next(s for s in placement.slices if s.device == on.uuid)
                answer = fits(on, placement.mode if held else None, held, asked)
                assert answer == part
                held.append(HeldSlice(slice=part, policy=asked.policy))


@given(st.lists(st.tuples(bundles, st.booleans()), max_size=14))
@settings(max_examples=examples(120), deadline=None)
def test_no_device_is_planned_beyond_its_sharing_mode_under_random_changes(
    steps: list[tuple[Bundle, bool]],
) -> None:
    nodes = {"a": (device(0), device(1)), "b": (device(0), device(1, T4))}
    scheduler = ClusterScheduler([node(n, *ds) for n, ds in nodes.items()], QUEUES, options=Options(reservations=0))
    placed: dict[str, tuple[Bundle, StartBundle]] = {}
    known: dict[str, Bundle] = {}
    for number, (bundle, ends) in enumerate(steps):
        name = str(number)
        try:
            scheduler.submit(request(name, bundle, at_s=float(number)))
        except CalabashError:
            continue
        known[name] = bundle
        for started, start in starts(scheduler, float(number)).items():
            placed[started] = (known[started], start)
        check(placed, nodes)
        if ends and placed:
            gone = min(placed)
            del placed[gone]
            scheduler.finished(AllocationId(gone))
    again = ClusterScheduler([node(n, *ds) for n, ds in nodes.items()], QUEUES)
    for name, (bundle, start) in placed.items():
        again.adopt(request(name, bundle), start.placements, started_at_s=0.0)
        before, after = scheduler.scheduler.cluster, again.scheduler.cluster
        held = scheduler.scheduler.registry.running(name)
        adopted = again.scheduler.registry.running(name)
        assert held is not None
        assert adopted is not None
        assert (held.request.shape.gpu_milli, held.placement.devices) == (
            adopted.request.shape.gpu_milli,
            adopted.placement.devices,
        )
    assert (before.gpu_free_mib == after.gpu_free_mib).all() if placed else True


def test_rebind_respects_constraints() -> None:
    scheduler = ClusterScheduler([node("a"), node("b"), node("c")], QUEUES)
    scheduler.submit(request("x", SHARE))
    first = starts(scheduler)["x"].node
    other = next(n for n in "abc" if n != first)
    again = rebind(scheduler, AllocationId("x"), ["nowhere", other], 1.0)
    assert again is not None
    assert again.node == other
    assert rebind(scheduler, AllocationId("x"), ["elsewhere"], 2.0) is None
    assert not scheduler.holds(AllocationId("x"))
    assert "x" in starts(scheduler, 3.0)


@pytest.mark.parametrize("again", ["unbound", "elsewhere"])
def test_adopted_request_that_loses_its_place_waits_by_its_own_request(again: str) -> None:
    """The shape of an adopted request describes its devices, not where it may go."""
    nodes = [node("a"), node("b", device(0, T4)), node("c", taints=("k=v:NoSchedule",)), node("d"), node("e")]
    scheduler = ClusterScheduler([replace(one, labels={"name": one.name}) for one in nodes], QUEUES)
    asked = replace(SHARE, memory_mib=8000, selector=Selector(models=(A100[0],)))
    placement = Placement(
        node=NodeName("a"),
        mode=ModeName("vgpu"),
        slices=(Slice(device=DeviceUuid("GPU-0"), memory_mib=8000, core_percent=40),),
    )
    constraints = PlacementConstraints(selector=("name in (a,b,c,e)",))
    scheduler.adopt(request("x", asked, constraints=constraints), [placement], started_at_s=0.0)
    scheduler.put_node(replace(scheduler.nodes[NodeName("a")], schedulable=False))
    if again == "elsewhere":
        assert rebind(scheduler, AllocationId("x"), ["b", "c", "d"], 1.0) is None
    else:
        scheduler.unbind(AllocationId("x"))
    assert starts(scheduler, 2.0)["x"].node == "e"


def test_unmanaged_memory_is_not_planned_until_it_is_freed() -> None:
    scheduler = ClusterScheduler([node("a", device(0), foreign_mib=35_000)], QUEUES)
    scheduler.submit(request("x", SHARE))
    assert not starts(scheduler)
    scheduler.put_node(node("a", device(0)))
    assert starts(scheduler, 1.0)["x"].node == "a"


@pytest.mark.parametrize("foreign_mib", [35_000, 40_960])
def test_unmanaged_memory_beside_a_holder_is_counted_when_the_holder_ends(foreign_mib: int) -> None:
    scheduler = ClusterScheduler([node("a", device(0))], QUEUES)
    scheduler.submit(request("whole", GpuRequest()))
    assert "whole" in starts(scheduler)
    for _ in range(2):  # the agent may say so again; nothing is otherwise
        scheduler.put_node(node("a", device(0), foreign_mib=foreign_mib))
    scheduler.finished(AllocationId("whole"))
    scheduler.submit(request("x", SHARE))
    assert not starts(scheduler, 1.0)
    scheduler.put_node(node("a", device(0)))
    assert starts(scheduler, 2.0)["x"].node == "a"
    scheduler.put_node(node("a", device(0), foreign_mib=foreign_mib))
    scheduler.remove_node(NodeName("a"))
    scheduler.finished(AllocationId("x"))
    scheduler.put_node(node("a", device(0)))
    scheduler.submit(request("y", GpuRequest()))
    assert "y" in starts(scheduler, 3.0)


def test_unhealthy_device_and_cordoned_node_take_nothing_new() -> None:
    scheduler = ClusterScheduler([node("a", device(0))], QUEUES)
    scheduler.put_node(node("a", device(0, health=Health.LOST)))
    scheduler.submit(request("x", SHARE))
    reported = [d for d in scheduler.cycle(0.0) if isinstance(d, Wait)]
    assert [d.reason for d in reported] == [Reason.UNHEALTHY]
    scheduler.put_node(node("a", device(0), schedulable=False))
    assert not starts(scheduler, 1.0)
    scheduler.put_node(node("a", device(0)))
    assert "x" in starts(scheduler, 2.0)


def test_a_node_with_other_devices_is_another_node() -> None:
    scheduler = ClusterScheduler([node("a", device(0, T4))], QUEUES)
    with pytest.raises(CalabashError, match="can give one slice"):
        scheduler.submit(request("x", GpuRequest(memory_mib=30_000, core_percent=50)))
    scheduler.put_node(node("a", device(0), device(1)))
    scheduler.submit(request("x", GpuRequest(memory_mib=30_000, core_percent=50)))
    assert starts(scheduler)["x"].placements[0].slices[0].memory_mib == 30_000


def test_modes_that_the_agent_does_not_serve_are_not_planned() -> None:
    scheduler = ClusterScheduler([node("a", modes=["exclusive"])], QUEUES)
    with pytest.raises(CalabashError, match="served in exclusive, asked vgpu"):
        scheduler.submit(request("x", SHARE))


def test_models_labels_and_taints_choose_the_node() -> None:
    nodes = [
        ClusterNode(name=NodeName("east"), devices=(NodeDevice(device=device(0)),), labels={"zone": "east"}),
        ClusterNode(name=NodeName("west"), devices=(NodeDevice(device=device(0)),), labels={"zone": "west"},
                    taints=("k=v:NoSchedule",)),
        ClusterNode(name=NodeName("old"), devices=(NodeDevice(device=device(0, T4)),), labels={"zone": "west"}),
    ]  # fmt: skip
    scheduler = ClusterScheduler(nodes, QUEUES)
    scheduler.submit(request("x", SHARE, constraints=PlacementConstraints(selector=("zone=west",))))
    scheduler.submit(request("y", GpuRequest(memory_mib=1024, core_percent=10, selector=Selector(models=("a100",)))))
    scheduler.submit(
        request("z", SHARE, constraints=PlacementConstraints(selector=("zone=west",), tolerations=frozenset(("k=v",)))),
    )
    found = starts(scheduler)
    assert (found["x"].node, found["y"].node) == ("old", "east")
    assert found["z"].node in {"west", "old"}


def test_guaranteed_devices_are_reclaimed_from_borrowers() -> None:
    queues = [QueueSpec(name="default"), QueueSpec(name="prod", deserved=Amount(2000, 0, 0))]
    scheduler = ClusterScheduler([node("a")], queues)
    for name in ("x", "y"):
        scheduler.submit(request(name, GpuRequest()))
    assert len(starts(scheduler)) == 2
    scheduler.submit(request("z", GpuRequest(queue="prod"), at_s=1.0))
    decided = scheduler.cycle(1.0)
    stopped = [d.id for d in decided if isinstance(d, Stop)]
    assert len(stopped) == 1
    assert next(d for d in decided if isinstance(d, StartBundle)).after == tuple(stopped)
    assert mode_for(GpuRequest()).name == "exclusive"


def test_allocation_without_free_devices_is_not_adopted() -> None:
    scheduler = ClusterScheduler([node("a", device(0))], QUEUES)
    scheduler.submit(request("x", GpuRequest()))
    held = starts(scheduler)["x"].placements
    with pytest.raises(CalabashError, match="cannot take"):
        scheduler.adopt(request("y", GpuRequest()), held, started_at_s=0.0)
    assert AllocationId("y") not in scheduler.known
    scheduler.finished(AllocationId("x"))
    scheduler.adopt(request("y", GpuRequest()), held, started_at_s=0.0)
    assert scheduler.holds(AllocationId("y"))


def test_adopted_allocation_is_charged_by_its_own_device_model() -> None:
    mixed = node("a", device(0), device(1, T4))
    first = ClusterScheduler([mixed], QUEUES)
    wanted = {name: GpuRequest(core_percent=50, selector=Selector(models=(name,))) for name in (A100[0], T4[0])}
    for name, asked in wanted.items():
        first.submit(request(name, asked))
    started = starts(first)
    again = ClusterScheduler([mixed], QUEUES)
    for name, asked in wanted.items():
        without = GpuRequest(core_percent=asked.core_percent)
        again.adopt(request(name, without), started[name].placements, started_at_s=0.0)
    assert (again.scheduler.cluster.gpu_free_mib == first.scheduler.cluster.gpu_free_mib).all()


def test_spilled_memory_counts_for_the_node_and_guaranteed_memory_for_the_device() -> None:
    gives = replace(device(0), spill_mib=40 * 1024)
    spilling = GpuRequest(memory_mib=50 * 1024, spill_mib=20 * 1024, core_percent=10)
    found = layout(resolve_bundle(together(spilling, GpuRequest(memory_mib=1024, core_percent=10))).on(gives))
    assert isinstance(found, Layout)
    assert (found.memory_mib, found.host_mib) == (31 * 1024 + 2 * 32, 20 * 1024)
    assert getattr(layout(resolve_bundle(one_by_one(spilling, spilling)).on(gives)), "host_mib", None) == 20 * 1024
    devices = [replace(gives, uuid=DeviceUuid(f"GPU-{i}"), index=i) for i in range(3)]
    scheduler = ClusterScheduler([node("a", *devices), node("b")], QUEUES)
    for i in range(3):
        scheduler.submit(request(f"r{i}", spilling, at_s=i))
    started = starts(scheduler)
    assert set(started) == {"r0", "r1"}, "three cards have room, the node's memory for two"
    assert {s.node for s in started.values()} == {"a"}
    scheduler.finished(AllocationId("r0"))
    assert set(starts(scheduler, 1.0)) == {"r2"}
