"""One machine: what the scheduler binds is exactly what the sharing modes admit, and nothing they admit is withheld."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.binder.local.machine import SETTLE_EVERY_S, LocalScheduler, Start, Stop, Wait, due_in_s
from calabash.binder.local.unmanaged_memory import UnmanagedDeviceMemory
from calabash.binder.shapes import islands_of
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full, joined
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Placement, Selector
from calabash.sched import Amount, Options, QueueSpec
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_for

QUEUES = [QueueSpec(name="default")]


def device(index: int, *, model: str = "NVIDIA A100-SXM4-40GB", memory_mib: int = 40960, peers: str = "") -> Device:
    return Device(
        uuid=DeviceUuid(f"GPU-{index}"), index=index, vendor="nvidia", model=model, memory_mib=memory_mib,
        nvlink_peers=tuple(DeviceUuid(f"GPU-{p}") for p in peers),
    )  # fmt: skip


def machine(*devices: Device, queues: list[QueueSpec] | None = None, options: Options | None = None) -> LocalScheduler:
    return LocalScheduler(NodeName("here"), devices, queues or QUEUES, options=options)


def name(text: object) -> AllocationId:
    return AllocationId(str(text))


requests = st.builds(
    GpuRequest,
    count=st.integers(1, 2),
    memory_mib=st.sampled_from([None, None, 512, 8192, 20000, 40928, 40960, 50000]),
    core_percent=st.sampled_from([1, 10, 33, 50, 100, 100]),
    mode=st.sampled_from([ModeName(m) for m in ("", "", "vgpu", "exclusive", "timeslice")]),
    policy=st.sampled_from(list(ComputePolicy)),
    selector=st.sampled_from([Selector(), Selector(), Selector(models=("t4",)), Selector(memory_mib_min=20000)]),
)
T4 = device(2, model="Tesla T4", memory_mib=15360)


@given(st.lists(requests, max_size=14), st.lists(st.integers(0, 13), max_size=6))
@settings(max_examples=examples(150), deadline=None)
def test_starts_agree_with_the_sharing_modes(asked: list[GpuRequest], ended: list[int]) -> None:
    devices = (device(0), device(1), T4)
    local = machine(*devices, options=Options(reservations=0))
    placed: dict[AllocationId, tuple[GpuRequest, Placement]] = {}

    def on(uuid: DeviceUuid) -> tuple[ModeName | None, list[HeldSlice]]:
        mode, held = None, []
        for request, placement in placed.values():
            for s in placement.slices:
                if s.device == uuid:
                    mode = placement.mode
                    held.append(HeldSlice(slice=s, policy=request.policy))
        return mode, held

    for number, request in enumerate(asked):
        try:
            local.submit(name(number), request, submitted_at_s=float(number))
        except CalabashError:
            # Impossible even on an idle machine: so says sharing for all but fewer devices than asked.
            idle = [d for d in devices if not isinstance(fits(d, None, (), request), Misfit)]
            assert len(idle) < request.count or len({d.memory_mib for d in idle}) > 1
            continue
        possible = [d for d in devices if not isinstance(fits(d, *on(d.uuid), request), Misfit)]
        started = {d.id: d for d in local.cycle(float(number)) if isinstance(d, Start)}
        if name(number) in started:
            answer = started[name(number)].placement
            assert answer.mode == mode_for(request).name
            assert len(answer.slices) == request.count
            for s in answer.slices:
                found = next(d for d in devices if d.uuid == s.device)
                assert fits(found, *on(found.uuid), request) == s
            placed[name(number)] = (request, answer)
        else:
            local.finished(name(number))
            assert len(possible) < request.count or len({d.memory_mib for d in possible}) > 1
        for gone in [name(e) for e in ended if e == number - 2]:
            if gone in placed:
                local.finished(gone)
                del placed[gone]


def test_restart_adopts_running_allocations_and_decides_alike() -> None:
    local = machine(device(0), device(1))
    requests_ = {
        name("v"): GpuRequest(memory_mib=8192, core_percent=30),
        name("t"): GpuRequest(mode=ModeName("timeslice")),
    }
    for allocation, request in requests_.items():
        local.submit(allocation, request, submitted_at_s=0.0)
    placements = {d.id: d.placement for d in local.cycle(0.0) if isinstance(d, Start)}
    again = machine(device(0), device(1))
    for allocation, placement in placements.items():
        again.adopt(allocation, requests_[allocation], placement, started_at_s=0.0)
    for scheduler in (local, again):
        scheduler.submit(name("w"), GpuRequest(memory_mib=16384, core_percent=70), submitted_at_s=1.0)
    assert local.cycle(1.0) == again.cycle(1.0)
    cluster, twin = local.scheduler.cluster, again.scheduler.cluster
    assert (cluster.gpu_free_mib == twin.gpu_free_mib).all()
    assert (cluster.gpu_free_milli == twin.gpu_free_milli).all()


def test_unhealthy_device_takes_nothing_new_until_it_recovers() -> None:
    local = machine(device(0))
    local.set_health(DeviceUuid("GPU-0"), Health.LOST)
    local.submit(name("a"), GpuRequest(), submitted_at_s=0.0)
    reported = local.cycle(0.0)
    assert [(type(d), d.reason) for d in reported if isinstance(d, Wait)] == [(Wait, Reason.UNHEALTHY)]
    local.set_health(DeviceUuid("GPU-0"), Health.HEALTHY)
    assert [type(d) for d in local.cycle(1.0)] == [Start]


def test_gang_starts_when_its_last_member_is_submitted() -> None:
    local = machine(device(0), device(1))
    for i in range(2):
        local.submit(name(i), GpuRequest(gang="g", gang_size=2), submitted_at_s=float(i))
        started = [d for d in local.cycle(float(i)) if isinstance(d, Start)]
        assert len(started) == (2 if i else 0)
    assert {s.device for d in started for s in d.placement.slices} == {"GPU-0", "GPU-1"}


def test_queue_reclaims_borrowed_devices() -> None:
    queues = [QueueSpec(name="default", deserved=Amount(1000)), QueueSpec(name="guest")]
    local = machine(device(0), queues=queues)
    local.submit(name("guest"), GpuRequest(queue="guest"), submitted_at_s=0.0)
    local.cycle(0.0)
    local.submit(name("owner"), GpuRequest(), submitted_at_s=1.0)
    decided = local.cycle(1.0)
    assert [(d.id, d.reason, d.by) for d in decided if isinstance(d, Stop)] == [("guest", Reason.RECLAIM, "owner")]
    assert [(d.id, d.after) for d in decided if isinstance(d, Start)] == [("owner", ("guest",))]
    assert local.explain_wait(name("guest"), 1.0).reason is Reason.QUEUE_OVER_DESERVED


def test_explanations_name_models_and_no_uuids() -> None:
    local = machine(device(0), T4)
    local.submit(name("a"), GpuRequest(selector=Selector(models=("T4",))), submitted_at_s=0.0)
    local.submit(name("b"), GpuRequest(selector=Selector(models=("T4",))), submitted_at_s=1.0)
    local.cycle(0.0)
    reported = local.explain_wait(name("b"), 1.0)
    text = in_full(joined(" ", (reported.summary, *(c.text for c in reported.causes), *reported.changes)))
    assert "GPU-" not in text


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (GpuRequest(count=4), Reason.TOO_LARGE),
        (GpuRequest(memory_mib=99999, core_percent=10), Reason.TOO_LARGE),
        (GpuRequest(selector=Selector(models=("H100",))), Reason.SELECTOR_MISMATCH),
        (GpuRequest(mode=ModeName("timeslice"), core_percent=10), Reason.MODE_CONFLICT),
    ],
)
def test_impossible_request_is_refused_at_once(request_: GpuRequest, reason: Reason) -> None:
    with pytest.raises(CalabashError) as caught:
        machine(device(0), device(1)).submit(name("a"), request_, submitted_at_s=0.0)
    assert caught.value.reason is reason


def test_islands_join_devices_reached_through_others() -> None:
    devices = [device(0, peers="1"), device(1, peers="02"), device(2, peers="1"), device(3), device(4, peers="5")]
    assert islands_of(devices) == [0, 0, 0, -1, 4]


def test_unmanaged_memory_is_not_granted_and_its_device_not_exclusively() -> None:
    local = machine(device(0))
    local.unmanaged_memory.set({DeviceUuid("GPU-0"): UnmanagedDeviceMemory(memory_mib=20_000, remedy="end pid 7")})
    local.submit(name("whole"), GpuRequest(mode=ModeName("exclusive")), submitted_at_s=0)
    local.submit(name("large"), GpuRequest(memory_mib=30_000, core_percent=10), submitted_at_s=0)
    local.submit(name("small"), GpuRequest(memory_mib=10_000, core_percent=10), submitted_at_s=0)
    assert [d.id for d in local.cycle(1.0) if isinstance(d, Start)] == ["small"]
    assert local.explain_wait(name("whole"), 1.0).changes[-1] == "end pid 7"
    local.finished(name("small"))
    local.finished(name("large"))
    local.unmanaged_memory.set({})
    assert [d.id for d in local.cycle(2.0) if isinstance(d, Start)] == ["whole"]


def test_unmanaged_memory_on_a_device_in_another_mode_counts_once_that_mode_ends() -> None:
    local = machine(device(0))
    local.submit(name("whole"), GpuRequest(mode=ModeName("exclusive")), submitted_at_s=0)
    assert [d.id for d in local.cycle(1.0) if isinstance(d, Start)] == ["whole"]
    foreign = {DeviceUuid("GPU-0"): UnmanagedDeviceMemory(memory_mib=20_000)}
    local.unmanaged_memory.set(foreign)
    assert not local.unmanaged_memory.is_counted()
    local.finished(name("whole"))
    local.unmanaged_memory.set(foreign)
    assert local.unmanaged_memory.is_counted()
    local.submit(name("again"), GpuRequest(mode=ModeName("exclusive")), submitted_at_s=2)
    assert not [d for d in local.cycle(3.0) if isinstance(d, Start)]


def test_two_devices_of_one_request_are_of_one_model_where_there_are_two() -> None:
    local = machine(device(0), device(1, model="NVIDIA A100-PCIE-40GB"), device(2))
    local.submit(name("pair"), GpuRequest(count=2), submitted_at_s=0.0)
    (start,) = local.cycle(0.0)
    assert isinstance(start, Start)
    assert [s.device for s in start.placement.slices] == ["GPU-0", "GPU-2"]


def test_only_newcomers_are_decided_until_devices_are_freed() -> None:
    local = machine(device(0))
    for i, allocation in enumerate(("a", "b")):
        local.submit(name(allocation), GpuRequest(), submitted_at_s=float(i), owner=allocation)
    assert [type(d) for d in local.cycle(2.0)] == [Start, Wait]
    local.submit(name("c"), GpuRequest(), submitted_at_s=2.1, owner="c")
    assert [(type(d), d.id) for d in local.decide([name("c")], 2.1)] == [(Wait, name("c"))]
    local.finished(name("a"))
    local.submit(name("d"), GpuRequest(), submitted_at_s=2.2, owner="d")
    decided = local.decide([name("d")], 2.2)
    assert [d.id for d in decided if isinstance(d, Start)] == [name("b")]
    assert name("d") in {d.id for d in decided}


@pytest.mark.parametrize(
    ("unfinished", "wake_at_s", "due"),
    [(True, 10.0, 0.0), (False, 10.0, SETTLE_EVERY_S), (False, 10.5, 0.5), (False, None, None)],
)
def test_next_cycle_is_due_at_once_only_if_the_last_was_incomplete(
    unfinished: bool, wake_at_s: float | None, due: float | None
) -> None:
    scheduler: Any = SimpleNamespace(unfinished=unfinished, wake_at_s=lambda: wake_at_s)
    assert due_in_s(scheduler, 10.0) == due
