"""MIG on one machine: the scheduler's starts are those of the slices, and cards change mode when they are idle."""

from __future__ import annotations

import random
from dataclasses import replace

from calabash.binder.local.machine import LocalScheduler, Start, Wait
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.mig import MigInstance, mig_state
from calabash.model.request import AllocationId, GpuRequest, Isolation, ModeName, Placement, Selector
from calabash.sched import Amount, Options, QueueSpec
from calabash.sched.cluster.mig_tables import GEOMETRIES


def card(index: int, kind: str = "H100") -> Device:
    return Device(
        uuid=DeviceUuid(f"GPU-{index}"), index=index, vendor="nvidia", model=kind, memory_mib=81_152,
        mig=GEOMETRIES.get(kind),
    )  # fmt: skip


def machine(*devices: Device) -> LocalScheduler:
    return LocalScheduler(NodeName("here"), devices, [QueueSpec(name="default")], options=Options(reservations=0))


def ask(local: LocalScheduler, name: str, request: GpuRequest) -> Placement | None:
    local.submit(AllocationId(name), request, submitted_at_s=0.0)
    for decision in local.decide([AllocationId(name)], 0.0):
        if isinstance(decision, Start) and decision.id == name:
            return decision.placement
    return None


def test_seven_small_instances_share_a_device_and_the_eighth_waits() -> None:
    local = machine(card(0))
    placed = [ask(local, f"p{n}", GpuRequest(mig="1g.10gb")) for n in range(8)]
    assert [p is None for p in placed] == [False] * 7 + [True]
    assert {p.slices[0].start for p in placed if p} == set(range(7))
    assert {p.mode for p in placed if p} == {"mig"}


def test_device_changes_its_mode_only_when_idle() -> None:
    local = machine(card(0))
    assert ask(local, "soft", GpuRequest(memory_mib=1000)) is not None
    assert ask(local, "hard", GpuRequest(mig="1g.10gb")) is None
    local.finished(AllocationId("soft"))
    started = [d for d in local.cycle(1.0) if isinstance(d, Start)]
    assert [d.placement.slices[0].profile for d in started] == ["1g.10gb"]
    assert ask(local, "soft again", GpuRequest(memory_mib=1000)) is None


def test_hardware_isolation_takes_a_partition_or_a_whole_device() -> None:
    both = machine(card(0, "T4"), card(1))
    part = ask(both, "a", GpuRequest(isolation=Isolation.HARDWARE, memory_mib=9000))
    assert part is not None
    only = machine(card(0, "T4"))
    whole = ask(only, "b", GpuRequest(isolation=Isolation.HARDWARE, memory_mib=9000))
    assert whole is not None
    assert (whole.mode, whole.slices[0].profile) == ("exclusive", "")


def test_journalled_allocation_keeps_its_place() -> None:
    first = machine(card(0))
    request = GpuRequest(mig="2g.20gb")
    placement = ask(first, "a", request)
    assert placement is not None
    again = machine(card(0))
    again.adopt(AllocationId("a"), request, placement, started_at_s=0.0)
    others = [ask(again, f"b{n}", GpuRequest(mig="2g.20gb")) for n in range(2)]
    starts = {p.slices[0].start for p in [placement, *others] if p}
    assert starts == {0, 2, 4}


def test_idle_instance_is_used_before_another_is_destroyed() -> None:
    local = machine(card(0))
    local.set_mig_instances(
        DeviceUuid("GPU-0"),
        (*(MigInstance(profile="1g.10gb", start=s) for s in range(4)), MigInstance(profile="3g.40gb", start=4)),
    )
    placement = ask(local, "a", GpuRequest(mig="3g.40gb"))
    assert placement is not None
    assert placement.slices[0].start == 4


def test_nothing_is_placed_on_instances_of_unmanaged_processes() -> None:
    foreign = (MigInstance(profile="4g.40gb", start=0, foreign=True),)
    local = machine(replace(card(0), mig_instances=foreign))
    assert ask(local, "a", GpuRequest(mig="4g.40gb")) is None
    local.set_mig_instances(DeviceUuid("GPU-0"), ())
    assert any(isinstance(d, Start) for d in local.cycle(1.0))


def test_device_pinned_to_mig_takes_only_partitions() -> None:
    local = machine(replace(card(0), pinned="mig"), card(1))
    software = ask(local, "a", GpuRequest(memory_mib=1000))
    hardware = ask(local, "b", GpuRequest(mig="1g.10gb"))
    assert software is not None
    assert hardware is not None
    assert (software.slices[0].device, hardware.slices[0].device) == ("GPU-1", "GPU-0")


def test_allocation_on_a_device_pinned_to_another_mode_still_counts() -> None:
    request = GpuRequest(memory_mib=30_000, core_percent=80)
    held = ask(machine(card(0)), "a", request)
    assert held is not None
    queues = [QueueSpec(name="default", limit=Amount(gpu_milli=1500))]
    again = LocalScheduler(NodeName("here"), (replace(card(0), pinned="exclusive"), card(1)), queues)
    again.adopt(AllocationId("a"), request, held, started_at_s=0.0)
    assert again.runs(AllocationId("a"))
    assert ask(again, "b", GpuRequest(mode=ModeName("vgpu"), memory_mib=30_000, core_percent=80)) is None, (
        "above the limit"
    )
    again.finished(AllocationId("a"))
    again.finished(AllocationId("b"))
    whole = ask(again, "c", GpuRequest(mode=ModeName("exclusive")))
    assert whole is not None
    assert whole.slices[0].device == "GPU-0", "it is kept in that mode"


def test_wait_is_estimated_although_a_device_leaves_another_mode_than_its_pinned_one() -> None:
    for request in (GpuRequest(mig="1g.10gb"), GpuRequest(memory_mib=30_000, core_percent=80)):
        held = ask(machine(card(0)), "a", request)
        assert held is not None
        queues = [QueueSpec(name="default")]
        again = LocalScheduler(NodeName("here"), (replace(card(0), pinned="exclusive"), card(1)), queues)
        again.adopt(AllocationId("a"), request, held, started_at_s=0.0)
        assert ask(again, "b", GpuRequest(mode=ModeName("exclusive"), count=2)) is None
        again.cycle(1.0)
        again.finished(AllocationId("a"))
        assert any(isinstance(d, Start) for d in again.cycle(2.0))


def test_devices_of_one_request_are_partitioned_independently() -> None:
    local = machine(card(0), card(1))
    for name, profile in (("a", "4g.40gb"), ("b", "7g.80gb")):
        assert ask(local, name, GpuRequest(mig=profile)) is not None
    local.finished(AllocationId("b"))
    assert ask(local, "c", GpuRequest(mig="1g.10gb", selector=Selector(uuids=(DeviceUuid("GPU-1"),)))) is not None
    placement = ask(local, "d", GpuRequest(count=2, mig="3g.40gb"))
    assert placement is not None
    assert {part.device: part.start for part in placement.slices} == {"GPU-0": 4, "GPU-1": 0}
    again = machine(card(0), card(1))
    again.adopt(AllocationId("d"), GpuRequest(count=2, mig="3g.40gb"), placement, started_at_s=0.0)
    placed = [ask(again, f"e{n}", GpuRequest(mig="4g.40gb")) for n in range(2)]
    assert [p.slices[0].device if p else None for p in placed] == ["GPU-0", None]


def test_small_requests_share_an_instance_until_the_last_has_ended() -> None:
    local = machine(card(0))
    placed = [ask(local, f"p{n}", GpuRequest(mig="1c.4g.40gb")) for n in range(5)]
    assert [p.slices[0].place if p else None for p in placed] == [(0, 3), (0, 2), (0, 1), (0, 0), None]
    local.finished(AllocationId("p4"))
    for n in range(3):
        local.finished(AllocationId(f"p{n}"))
    assert ask(local, "whole", GpuRequest(mig="4g.40gb")) is None
    local.finished(AllocationId("p3"))
    started = [d.placement.slices[0].profile for d in local.cycle(1.0) if isinstance(d, Start)]
    assert started == ["4g.40gb"]


def test_journalled_shares_of_an_instance_keep_their_compute_slices() -> None:
    first = machine(card(0))
    kept = [ask(first, f"p{n}", GpuRequest(mig="1c.3g.40gb")) for n in range(2)]
    again = machine(card(0))
    for n, placement in enumerate(kept):
        assert placement is not None
        again.adopt(AllocationId(f"p{n}"), GpuRequest(mig="1c.3g.40gb"), placement, started_at_s=0.0)
    third = ask(again, "p2", GpuRequest(mig="1c.3g.40gb"))
    assert third is not None
    places = {p.slices[0].place for p in (*kept, third) if p}
    assert len(places) == 3
    assert len({place.start for place in places}) == 1


def test_scheduler_and_mig_layout_agree_under_random_demand() -> None:
    dice = random.Random(11)
    geometry = GEOMETRIES["H100"]
    local = machine(card(0), card(1))
    held: dict[str, Placement] = {}
    started = waited = 0
    for number in range(600):
        if held and dice.random() < 0.45:
            gone = dice.choice(sorted(held))
            held.pop(gone)
            local.finished(AllocationId(gone))
        elif dice.random() < 0.15:
            local.submit(
                AllocationId(f"n{number}"), GpuRequest(mode=ModeName("vgpu"), memory_mib=500), submitted_at_s=0
            )
        else:
            profile = dice.choice(geometry.profiles).name
            if dice.random() < 0.4:
                profile = dice.choice(("1c.3g.40gb", "2c.3g.40gb", "1c.2g.20gb", "2c.7g.80gb"))
            local.submit(AllocationId(f"n{number}"), GpuRequest(mig=profile), submitted_at_s=0)
        for decision in local.cycle(float(number)):
            if isinstance(decision, Start):
                held[decision.id] = decision.placement
                started += 1
            waited += isinstance(decision, Wait)
        for uuid in ("GPU-0", "GPU-1"):
            parts = [(p.mode, p.slices[0]) for p in held.values() if p.slices[0].device == uuid]
            assert len({mode for mode, _ in parts}) <= 1
            places = [(part.profile, *part.place) for _, part in parts if part.profile]
            state = mig_state(geometry, places)
            profiles = [(geometry.profile(name), start) for name, start, _ in places]
            instances = {(p.instance, start): p.slices for p, start in profiles if p}
            assert state.mask.bit_count() == sum(instances.values())
            assert sum(p.compute for p, _ in profiles if p and p.of) == sum(s.mask.bit_count() for s in state.shared)
            assert state.compute <= geometry.compute
    assert started > 150
    assert waited > 20


def test_journalled_allocation_is_adopted_beside_an_unmanaged_process() -> None:
    request = GpuRequest(mig="1c.3g.40gb")
    placement = ask(machine(card(0)), "a", request)
    assert placement is not None
    start = placement.slices[0].start
    again = machine(replace(card(0), mig_instances=(MigInstance(profile="3g.40gb", start=start, foreign=True),)))
    again.adopt(AllocationId("a"), request, placement, started_at_s=0.0)
    other = ask(again, "b", request)
    assert other is not None
    assert other.slices[0].start != start


def test_shares_of_instances_count_as_shares_of_the_device() -> None:
    layout = tuple(MigInstance(profile=p, start=s, fixed=True) for p, s in (("4g.40gb", 0), ("3g.40gb", 4)))
    kept = replace(card(0), pinned="mps", mig_enabled=True, mig_instances=layout)
    local = machine(kept)
    third = GpuRequest(mode=ModeName("mps"), core_percent=28, memory_mib=8192)
    placed = [ask(local, f"p{n}", third) for n in range(4)]
    assert [p.slices[0].profile if p else None for p in placed] == ["3g.40gb", "4g.40gb", "4g.40gb", None]
    again = machine(kept)
    for name, placement in enumerate(placed[:2]):
        assert placement is not None
        again.adopt(AllocationId(f"p{name}"), third, placement, started_at_s=0.0)
    beside = ask(again, "r", GpuRequest(mode=ModeName("mps"), core_percent=15, memory_mib=1024))
    assert beside is not None
    assert beside.slices[0].profile == "3g.40gb"
