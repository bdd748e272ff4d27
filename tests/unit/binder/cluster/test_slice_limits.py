"""Limits of slices per device that a node enforces are part of what the scheduler plans, on one machine and on a cluster."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from calabash.binder.cluster.bundle import Bundle, Part
from calabash.binder.cluster.cluster import BundleRequest, ClusterScheduler, StartBundle
from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.binder.cluster.nodes import ClusterNode
from calabash.binder.local.machine import LocalScheduler, Start, Wait
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Placement
from calabash.sched import Bind, Move, QueueSpec
from calabash.sharing.protocol import Misfit

LIMITS = {"vgpu": 64, "mps": 48, "timeslice": 5}
POLICIES = {"vgpu": ComputePolicy.BEST_EFFORT, "brokered": ComputePolicy.BEST_EFFORT}


def devices(count: int) -> list[Device]:
    return [
        Device(uuid=DeviceUuid(f"GPU-{i}"), index=i, vendor="nvidia", model="H100", memory_mib=81920, replicas=5)
        for i in range(count)
    ]


def small(mode: str) -> GpuRequest:
    if mode == "timeslice":
        return GpuRequest(mode=ModeName(mode))
    return GpuRequest(
        memory_mib=64, core_percent=1, mode=ModeName(mode), policy=POLICIES.get(mode, ComputePolicy.FIXED)
    )


class Strict(LocalScheduler):
    """A scheduler that fails where a sharing mode refuses what was decided."""

    def _placed(self, decision: Bind | Move) -> Placement | Misfit:
        answer = super()._placed(decision)
        assert not isinstance(answer, Misfit), answer
        return answer


@pytest.mark.parametrize("mode", LIMITS)
def test_slices_beyond_the_limit_of_one_device_start_on_the_next(mode: str) -> None:
    local = Strict(NodeName("here"), devices(2), [QueueSpec(name="default")])
    most = LIMITS[mode]
    for i in range(2 * most + 1):
        local.submit(AllocationId(f"s{i}"), small(mode), submitted_at_s=float(i))
    on: Counter[str] = Counter()
    waits = []
    for turn in range(5):
        for decision in local.cycle(100.0 + 60 * turn):
            if isinstance(decision, Start):
                on.update(part.device for part in decision.placement.slices)
            elif isinstance(decision, Wait):
                waits.append(decision.id)
    assert on == {"GPU-0": most, "GPU-1": most}
    assert set(waits) == {f"s{2 * most}"}


@pytest.mark.parametrize("seed", range(12))
def test_machine_never_starts_what_a_sharing_mode_refuses(seed: int) -> None:
    rng = random.Random(seed)
    local = Strict(NodeName("here"), devices(3), [QueueSpec(name="default")])
    running: list[AllocationId] = []
    for step in range(12):
        mode = rng.choice(("vgpu", "brokered", "mps", "timeslice", ""))
        for i in range(rng.randint(1, 80)):
            name = AllocationId(f"s{step}-{i}")
            request = small(mode) if mode else GpuRequest(count=rng.randint(1, 2))
            local.submit(name, request, submitted_at_s=float(step))
        running.extend(d.id for d in local.cycle(100.0 + step) if isinstance(d, Start))
        rng.shuffle(running)
        for _ in range(len(running) // 2):
            local.finished(running.pop())


def pod(name: str, parts: int, *, one_by_one: bool = False) -> BundleRequest:
    """A pod of small containers that run at the same time, or one after the other."""
    phases = tuple((n,) for n in range(parts)) if one_by_one else (tuple(range(parts)),)
    made = tuple(Part(name=f"c{n}", request=small("vgpu")) for n in range(parts))
    return BundleRequest(id=AllocationId(name), bundle=Bundle(parts=made, phases=phases), submitted_at_s=0.0)


@pytest.mark.parametrize(
    ("parts", "one_by_one", "fit"), [(1, False, 64), (10, False, 6), (64, False, 1), (3, True, 64)]
)
def test_containers_of_pods_count_against_the_slices_of_a_device(parts: int, fit: int, *, one_by_one: bool) -> None:
    node = ClusterNode(name=NodeName("a"), labels={}, devices=tuple(NodeDevice(device=d) for d in devices(2)))
    cluster = ClusterScheduler([node], [QueueSpec(name="default")])
    for i in range(2 * fit + 1):
        cluster.submit(pod(f"p{i}", parts, one_by_one=one_by_one))
    decided = [d for turn in range(3) for d in cluster.cycle(100.0 + 60 * turn)]
    started = [d for d in decided if isinstance(d, StartBundle)]
    on = Counter(d.placements[0].slices[0].device for d in started)
    assert on == {"GPU-0": fit, "GPU-1": fit}


def test_pod_with_dust_on_two_devices_is_charged_for_its_slices() -> None:
    node = ClusterNode(name=NodeName("a"), labels={}, devices=tuple(NodeDevice(device=d) for d in devices(2)))
    cluster = ClusterScheduler([node], [QueueSpec(name="default")])
    request = GpuRequest(count=2, memory_mib=1, mode=ModeName("vgpu"), policy=ComputePolicy.BEST_EFFORT)
    cluster.submit(BundleRequest(id=AllocationId("p"), bundle=Bundle.single("c", request), submitted_at_s=0.0))
    assert [type(d) for d in cluster.cycle(100.0)] == [StartBundle]
    assert cluster.scheduler.tree.used("default").gpu_milli == 2 * 1000 / 64
