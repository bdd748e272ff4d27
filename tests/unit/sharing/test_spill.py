"""Tests of spilled memory: only the memory on the device counts there, and the spilled memory of a node is limited."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calabash.binder.local.machine import LocalScheduler, Start, Wait
from calabash.binder.shapes import host_memory_of
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.allocations.capacity_check import require_room
from calabash.node.slots.content import SlotDevice, SlotSpec, limits_bytes
from calabash.node.slots.files import create_slot
from calabash.node.slots.pages import LimitsPage
from calabash.node.snapshot import DeviceSnapshot
from calabash.platform.home.directory import SETTINGS_FILE
from calabash.pool.settings import read_settings
from calabash.sched import QueueSpec
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, resolve
from calabash.sharing.vgpu import SLICE_RESERVE_MIB

GIB = 1024
CARD = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="acme", model="A100", memory_mib=80 * GIB, spill_mib=60 * GIB)


def _ask(memory_gib: int, spill_gib: int) -> GpuRequest:
    return GpuRequest(memory_mib=memory_gib * GIB, spill_mib=spill_gib * GIB, core_percent=50)


def test_slice_with_spill_may_exceed_the_device_and_is_charged_its_resident_memory() -> None:
    part = fits(CARD, None, (), _ask(100, 40))
    assert part == Slice(device=CARD.uuid, memory_mib=100 * GIB, core_percent=50, spill_mib=40 * GIB)
    assert part.resident_mib == 60 * GIB
    held = [HeldSlice(slice=part)]
    free_mib = 20 * GIB - 2 * SLICE_RESERVE_MIB
    second = fits(CARD, ModeName("vgpu"), held, GpuRequest(memory_mib=free_mib, core_percent=50))
    assert isinstance(second, Slice)
    third = fits(CARD, ModeName("vgpu"), held, GpuRequest(memory_mib=free_mib + 1, core_percent=50))
    assert isinstance(third, Misfit)
    assert third.reason is Reason.NO_MEMORY


def test_two_slices_of_70_percent_with_spill_fit_on_one_device() -> None:
    ask = _ask(56, 17)
    first = fits(CARD, None, (), ask)
    assert isinstance(first, Slice)
    assert isinstance(fits(CARD, ModeName("vgpu"), [HeldSlice(slice=first)], ask), Slice)


def test_spill_is_refused_if_the_node_does_not_allow_it() -> None:
    answer = fits(replace(CARD, spill_mib=0), None, (), _ask(60, 30))
    assert isinstance(answer, Misfit)
    assert answer.reason is Reason.NOT_PERMITTED
    scheduler = _scheduler(replace(CARD, spill_mib=0))
    with pytest.raises(CalabashError) as caught:
        scheduler.submit(AllocationId("a"), _ask(60, 30), submitted_at_s=0.0)
    assert caught.value.reason is Reason.NOT_PERMITTED
    assert "spill = true" in caught.value.hint


@pytest.mark.parametrize(("memory_gib", "spill_gib"), [(30, 30), (30, 40)])
def test_spill_of_all_memory_is_refused(memory_gib: int, spill_gib: int) -> None:
    with pytest.raises(CalabashError, match="out of range"):
        _ask(memory_gib, spill_gib)


def test_spill_needs_an_amount_of_memory_and_mode_vgpu() -> None:
    with pytest.raises(CalabashError, match="out of range"):
        GpuRequest(spill_mib=1)
    with pytest.raises(CalabashError) as caught:
        GpuRequest(memory_mib=2, spill_mib=1, mode=ModeName("timeslice"))
    assert caught.value.reason is Reason.MODE_CONFLICT
    assert GpuRequest(memory_mib=2, spill_mib=1).mode == "vgpu"


def _scheduler(*devices: Device) -> LocalScheduler:
    queues = [QueueSpec(name="default")]
    return LocalScheduler(NodeName("here"), devices, queues, memory_mib=host_memory_of(devices))


def test_request_waits_if_the_spill_memory_of_the_node_is_used() -> None:
    cards = [CARD, replace(CARD, uuid=DeviceUuid("GPU-2"), index=1)]
    scheduler = _scheduler(*cards)
    scheduler.submit(AllocationId("a"), _ask(60, 40), submitted_at_s=0.0)
    assert [type(d) for d in scheduler.cycle(0.0)] == [Start]
    scheduler.submit(AllocationId("b"), _ask(60, 40), submitted_at_s=1.0)
    (waits,) = scheduler.cycle(1.0)
    assert isinstance(waits, Wait)
    assert waits.reason is Reason.NO_HOST_MEMORY
    scheduler.finished(AllocationId("a"))
    assert [type(d) for d in scheduler.cycle(2.0)] == [Start]


def test_agent_never_grants_more_spill_memory_than_the_node_allows() -> None:
    request = _ask(60, 40)
    part = Slice(device=CARD.uuid, memory_mib=60 * GIB, core_percent=10, spill_mib=40 * GIB)
    record = AllocationRecord(
        id=AllocationId("b"),
        state=AllocationState.GRANTED,
        request=request,
        placement=Placement(node=NodeName("here"), mode=ModeName("vgpu"), slices=(part,)),
    )
    idle = DeviceSnapshot(device=CARD, mode=None, held=())
    rules = resolve(replace(request, mode=ModeName("vgpu")))
    require_room(record, rules, [idle])
    other = replace(CARD, uuid=DeviceUuid("GPU-2"), index=1)
    busy = DeviceSnapshot(
        device=other, mode=ModeName("vgpu"), held=(HeldSlice(slice=part),), allocations=(AllocationId("a"),)
    )
    with pytest.raises(CalabashError) as caught:
        require_room(record, rules, [idle, busy])
    assert caught.value.reason is Reason.NO_HOST_MEMORY
    require_room(record, rules, [idle, busy], but=[AllocationId("a")])


def test_limits_page_has_initial_resident_and_total_memory_limits(tmp_path: Path) -> None:
    device = SlotDevice(uuid=CARD.uuid, memory_limit_bytes=56 << 30, spill_bytes=16 << 30)
    create_slot(tmp_path / "s", SlotSpec(allocation=AllocationId("s"), devices=(device,)))
    limits = LimitsPage.of_slot(tmp_path / "s")
    told = limits.device(0)
    assert (told.memory_limit_bytes, told.resident_limit_bytes) == (24 << 30, 40 << 30)
    assert limits.cap_bytes(0) == 56 << 30
    much = replace(device, memory_limit_bytes=60 << 30, spill_bytes=50 << 30)
    create_slot(tmp_path / "t", SlotSpec(allocation=AllocationId("t"), devices=(much,)))
    told = LimitsPage.of_slot(tmp_path / "t").device(0)
    assert 0 < told.memory_limit_bytes < 4096, "0 would be no limit"
    assert told.resident_limit_bytes == 10 << 30


def test_limits_page_without_spill_has_layout_version_1() -> None:
    plain = SlotDevice(uuid=CARD.uuid, memory_limit_bytes=1 << 30)
    assert limits_bytes(SlotSpec(allocation=AllocationId("s"), devices=(plain,)))[8:12] == b"\1\0\0\0"


def test_spill_must_be_enabled_in_the_settings_and_defaults_to_half_of_the_host_memory(tmp_path: Path) -> None:
    assert not read_settings(tmp_path).devices.cards().spill
    (tmp_path / SETTINGS_FILE).write_text("[devices]\nspill_mib_max = 4096\n")
    assert not read_settings(tmp_path).devices.cards().spill
    (tmp_path / SETTINGS_FILE).write_text("[devices]\nspill = true\nspill_mib_max = 4096\n")
    assert read_settings(tmp_path).devices.spilled_mib() == 4096
    (tmp_path / SETTINGS_FILE).write_text("[devices]\nspill = true\n")
    total_mib = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    assert read_settings(tmp_path).devices.spilled_mib() == pytest.approx(total_mib / 2, rel=0.05)
