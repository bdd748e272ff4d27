"""MIG over many nodes: plans have a profile and a start, and what is adopted keeps its place."""

from __future__ import annotations

from dataclasses import replace

from calabash.binder.cluster.bundle import Bundle, Part
from calabash.binder.cluster.cluster import BundleRequest, ClusterScheduler, StartBundle
from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.binder.cluster.nodes import ClusterNode
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.mig import MigInstance, mig_state
from calabash.model.request import AllocationId, GpuRequest, Isolation, ModeName, Placement, Slice
from calabash.sched import QueueSpec
from calabash.sched.cluster.mig_tables import GEOMETRIES

H100 = GEOMETRIES["H100"]


def card(name: str, *, cut: bool = True, instances: tuple[MigInstance, ...] = ()) -> NodeDevice:
    found = Device(
        uuid=DeviceUuid(name), index=0, vendor="nvidia", model="H100" if cut else "T4",
        memory_mib=81_152 if cut else 15_360, mig=H100 if cut else None, mig_instances=instances,
    )  # fmt: skip
    return NodeDevice(device=found)


def node(name: str, *devices: NodeDevice) -> ClusterNode:
    found = tuple(replace(d, device=replace(d.device, index=i)) for i, d in enumerate(devices))
    return ClusterNode(name=NodeName(name), devices=found, labels={})


def cluster(*nodes: ClusterNode) -> ClusterScheduler:
    return ClusterScheduler(nodes, [QueueSpec(name="default")])


def ask(scheduler: ClusterScheduler, name: str, *requests: GpuRequest) -> tuple[Placement, ...] | None:
    parts = tuple(Part(name=f"c{i}", request=r) for i, r in enumerate(requests))
    bundle = Bundle(parts=parts, phases=(tuple(range(len(parts))),))
    scheduler.submit(BundleRequest(id=AllocationId(name), bundle=bundle, submitted_at_s=0.0))
    found = [d for d in scheduler.cycle(0.0) if isinstance(d, StartBundle) and d.id == name]
    return found[0].placements if found else None


def test_instances_of_pods_share_a_card_until_it_is_full() -> None:
    scheduler = cluster(node("n1", card("GPU-a")), node("n2", card("GPU-t", cut=False)))
    placed = [ask(scheduler, f"p{n}", GpuRequest(mig="2g.20gb")) for n in range(4)]
    starts = [p[0].slices[0].start for p in placed if p]
    assert sorted(starts) == [0, 2, 4]
    assert placed[3] is None
    assert {p[0].mode for p in placed if p} == {"mig"}


def test_hardware_isolation_is_a_partition_on_one_kind_and_a_whole_device_on_another() -> None:
    request = GpuRequest(isolation=Isolation.HARDWARE, memory_mib=9000)
    partition = ask(cluster(node("n1", card("GPU-a"))), "p", request)
    whole = ask(cluster(node("n1", card("GPU-t", cut=False))), "p", request)
    assert partition is not None
    assert partition[0].slices[0].profile == "1g.10gb"
    assert whole is not None
    assert whole[0].mode == "exclusive"


def test_planned_instance_is_adopted_at_its_place() -> None:
    first = cluster(node("n1", card("GPU-a")))
    placed = ask(first, "p", GpuRequest(mig="3g.40gb"))
    assert placed is not None
    again = cluster(node("n1", card("GPU-a")))
    bundle = Bundle.single("c0", GpuRequest(mig="3g.40gb"))
    again.adopt(BundleRequest(id=AllocationId("p"), bundle=bundle, submitted_at_s=0.0), placed, started_at_s=0.0)
    other = ask(again, "q", GpuRequest(mig="3g.40gb"))
    assert other is not None
    assert {placed[0].slices[0].start, other[0].slices[0].start} == {0, 4}
    assert ask(again, "r", GpuRequest(mig="1g.10gb")) is None


def test_containers_with_different_profiles_share_one_partitioned_device() -> None:
    scheduler = cluster(node("n1", card("GPU-a"), card("GPU-b")))
    placed = ask(scheduler, "p", GpuRequest(mig="1g.10gb"), GpuRequest(mig="3g.40gb"), GpuRequest(mig="1g.10gb"))
    assert placed is not None
    parts = [p.slices[0] for p in placed]
    assert len({part.device for part in parts}) == 1
    places = [(part.profile, part.start) for part in parts]
    assert mig_state(H100, places).mask.bit_count() == 6


def test_containers_with_instances_leave_the_rest_of_the_device_to_other_pods() -> None:
    scheduler = cluster(node("n1", card("GPU-a")))
    pod = ask(scheduler, "p", GpuRequest(mig="1g.10gb"), GpuRequest(mig="2g.20gb"))
    other = ask(scheduler, "q", GpuRequest(mig="4g.40gb"))
    assert pod is not None
    assert other is not None
    places = [(s.profile, s.start) for p in (*pod, *other) for s in p.slices]
    assert mig_state(H100, places).mask.bit_count() == 7
    again = cluster(node("n1", card("GPU-a")))
    parts = tuple(Part(name=f"c{i}", request=GpuRequest(mig=name)) for i, name in enumerate(("1g.10gb", "2g.20gb")))
    request = BundleRequest(id=AllocationId("p"), bundle=Bundle(parts=parts, phases=((0, 1),)), submitted_at_s=0.0)
    again.adopt(request, pod, started_at_s=0.0)
    assert ask(again, "r", GpuRequest(mig="3g.40gb"), GpuRequest(mig="3g.40gb")) is None
    taken_up = ask(again, "q", GpuRequest(mig="4g.40gb"))
    assert taken_up == other
    again.finished(AllocationId("p"))
    again.finished(AllocationId("q"))
    assert any(isinstance(d, StartBundle) and d.id == "r" for d in again.cycle(1.0))


def test_sequential_containers_use_the_same_instance() -> None:
    scheduler = cluster(node("n1", card("GPU-a")))
    parts = tuple(Part(name=f"c{i}", request=GpuRequest(mig=name)) for i, name in enumerate(("7g.80gb", "7g.80gb")))
    bundle = Bundle(parts=parts, phases=((0,), (1,)))
    scheduler.submit(BundleRequest(id=AllocationId("p"), bundle=bundle, submitted_at_s=0.0))
    (started,) = [d for d in scheduler.cycle(0.0) if isinstance(d, StartBundle)]
    assert [p.slices[0].place for p in started.placements] == [(0, -1), (0, -1)]


def test_containers_whose_instances_do_not_fit_together_get_a_whole_device() -> None:
    scheduler = cluster(node("n1", card("GPU-a"), card("GPU-b")))
    placed = ask(scheduler, "p", GpuRequest(mig="4g.40gb"), GpuRequest(mig="4g.40gb"), GpuRequest(mig="3g.40gb"))
    assert placed is not None
    assert len({p.slices[0].device for p in placed}) == 2
    assert ask(scheduler, "q", GpuRequest(mig="3g.40gb")) is None


def test_instance_is_shared_by_containers_of_one_pod_and_of_others() -> None:
    scheduler = cluster(node("n1", card("GPU-a")))
    pod = ask(scheduler, "p", GpuRequest(mig="1c.3g.40gb"), GpuRequest(mig="1c.3g.40gb"))
    third = ask(scheduler, "q", GpuRequest(mig="1c.3g.40gb"))
    assert pod is not None
    assert third is not None
    places = {p.slices[0].place for p in (*pod, *third)}
    assert len(places) == 3
    assert len({place.start for place in places}) == 1


def test_remaining_instance_excludes_other_modes_until_it_is_gone() -> None:
    stays = (MigInstance(profile="1g.10gb", start=0, foreign=True),)
    scheduler = cluster(node("n1", card("GPU-a", instances=stays)))
    assert ask(scheduler, "soft", GpuRequest(memory_mib=1000)) is None
    assert ask(scheduler, "hard", GpuRequest(mig="4g.40gb")) is None
    small = ask(scheduler, "small", GpuRequest(mig="3g.40gb"))
    assert small is not None
    assert small[0].slices[0].start == 4
    scheduler.finished(AllocationId("small"))
    scheduler.finished(AllocationId("hard"))
    scheduler.put_node(node("n1", card("GPU-a")))
    assert any(isinstance(d, StartBundle) and d.id == "soft" for d in scheduler.cycle(1.0))


def test_pods_share_instances_of_a_device_pinned_to_mode_mps() -> None:
    layout = (
        MigInstance(profile="4g.40gb", start=0, fixed=True),
        MigInstance(profile="3g.40gb", start=4, fixed=True, foreign=True),
    )
    found = card("GPU-a", instances=layout)
    kept = replace(found, device=replace(found.device, pinned="mps"), modes=frozenset({ModeName("mps")}))
    scheduler = cluster(node("n1", kept))
    third = GpuRequest(mode=ModeName("mps"), core_percent=30, memory_mib=8192)
    assert [p[0].slices[0].profile for n in "ab" if (p := ask(scheduler, n, third))] == ["4g.40gb"], (
        "strangers on the other"
    )
    assert ask(cluster(node("n1", card("GPU-a", instances=layout))), "c", third) is None, "not kept in that mode"
    again = cluster(node("n1", kept))
    request = BundleRequest(id=AllocationId("a"), bundle=Bundle.single("c0", third), submitted_at_s=0.0)
    part = Slice(device=DeviceUuid("GPU-a"), memory_mib=8192, core_percent=30, profile="3g.40gb", start=4)
    again.adopt(request, [Placement(node=NodeName("n1"), mode=ModeName("mps"), slices=(part,))], started_at_s=0.0)
    beside = ask(again, "b", replace(third, core_percent=13))
    assert beside is not None
    assert beside[0].slices[0].start == 4
