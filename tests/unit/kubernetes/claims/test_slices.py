"""Tests of the ResourceSlices of a node: every form of a card, within limits, and never two that exclude each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.claims.allocator import Allocator
from tests.unit.kubernetes.claims.claims_world import NODE, card, snapshot, snapshot_with

from calabash.adapters.host.pci.devices import PciTree
from calabash.adapters.host.processes import Process
from calabash.adapters.kube.objects.claims import (
    AllocatedDevice,
    AllocatedDevices,
    ClaimAllocation,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSliceSpec,
    SliceDevice,
)
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.kubernetes.claims import device_names
from calabash.kubernetes.claims.allocated import claim_plan
from calabash.kubernetes.claims.device_entry import semantic_version
from calabash.kubernetes.claims.slices import DEVICES_MAX, ServerFeatures, SliceFacts, pcie_roots, slice_name, slices_of
from calabash.model.device import Device, Health
from calabash.model.mig import MigInstance
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Slice
from calabash.node.membership.container import claim_allocation
from calabash.node.processes.unmanaged import UnmanagedProcess
from calabash.node.snapshot import DeviceSnapshot
from calabash.sched.cluster.mig_tables import GEOMETRIES
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_of_device

FACTS = SliceFacts(driver_version="570.86.10", cuda_version="12.8")
WHOLE, VGPU = "gpu-00000000", "gpu-00000000-vgpu"
APART, TOGETHER = ServerFeatures(), ServerFeatures(apart=False)
STRANGER = UnmanagedProcess(
    device=card().uuid, process=Process(pid=7, start_time=1), used_mib=100, uid=0, command="train"
)


def devices_of(specs: tuple[ResourceSliceSpec, ...]) -> dict[str, SliceDevice]:
    return {device.name: device for spec in specs for device in spec.devices}


def taints(state: DeviceSnapshot | Device, facts: SliceFacts = FACTS) -> dict[str, set[str]]:
    found = devices_of(slices_of(snapshot(state), facts))
    return {name: {taint.key for taint in device.taints} for name, device in found.items()}


def test_a_card_is_offered_whole_shared_in_every_mode_cut_and_passed_through() -> None:
    found = devices_of(slices_of(snapshot(card()), FACTS))
    assert {"", "-vgpu", "-timeslice", "-mps", "-vfio", "-observed"} == {
        n[len(WHOLE) :] for n in found if "-mig-" not in n
    }
    geometry = GEOMETRIES["H100"]
    assert {(n) for n in found if "-mig-" in n} == {
        f"{WHOLE}-mig-{p.name.replace('+', '-').replace('.', '-')}-{s}" for p in geometry.profiles for s in p.starts
    }
    assert {n for n, d in found.items() if d.allow_multiple_allocations} == {VGPU, f"{WHOLE}-mps", f"{WHOLE}-timeslice"}


def test_selectors_find_what_they_ask_for_in_our_words_and_in_nvidias() -> None:
    found = devices_of(slices_of(snapshot(card(nvlink_peers=(card(1).uuid,)), card(1)), FACTS))
    whole = found[WHOLE].attributes
    assert {n: whole[n].string for n in ("mode", "island", "resource.kubernetes.io/pciBusID")} == {
        "mode": "exclusive",
        "island": WHOLE,
        "resource.kubernetes.io/pciBusID": "0000:01:00.0",
    }
    assert whole["computeCapability"].version == "9.0.0"
    assert whole["driverVersion"].version == "570.86.10"
    assert found["gpu-00000001"].attributes["island"].string == WHOLE
    assert (whole["gpu.nvidia.com/type"].string, whole["gpu.nvidia.com/architecture"].string) == ("gpu", "Hopper")
    mig = found[f"{WHOLE}-mig-1g-10gb-2"].attributes
    assert (mig["gpu.nvidia.com/type"].string, mig["gpu.nvidia.com/profile"].string) == ("mig", "1g.10gb")
    assert "gpu.nvidia.com/type" not in found[VGPU].attributes


@pytest.mark.parametrize(
    ("written", "semver"),
    [("535.104.05", "535.104.5"), ("570.1", "570.1.0"), ("550.54.15, 6.1", "550.54.15"), ("", "")],
)
def test_versions_are_written_as_the_api_takes_them(written: str, semver: str) -> None:
    assert semantic_version(written) == semver


@pytest.mark.parametrize("features", [ServerFeatures(), ServerFeatures(apart=False)])
@given(st.integers(1, 17), st.sampled_from(sorted(GEOMETRIES)))
def test_slices_stay_within_the_limits_of_the_api(features: ServerFeatures, count: int, model: str) -> None:
    cards = [card(i, uuid=f"GPU-{i:08x}-0000-4000-8000-000000000000", mig=GEOMETRIES[model]) for i in range(count)]
    specs = slices_of(snapshot(*cards), FACTS, features)
    assert specs == slices_of(snapshot(*reversed(cards)), FACTS, features)
    assert {spec.pool.resource_slice_count for spec in specs} == {len(specs)}
    sets = [one.name for spec in specs for one in spec.shared_counters]
    assert len(sets) == len(set(sets)) == count
    for spec in specs:
        assert len(spec.devices) <= DEVICES_MAX
        assert len(spec.shared_counters) <= 8
        assert (not spec.devices or not spec.shared_counters) is features.apart
        here = {one.name for one in spec.shared_counters}
        for device in spec.devices:
            assert len(device.attributes) + len(device.capacity) <= 32
            assert all(len(a.string or "") <= 64 for a in device.attributes.values())
            assert features.apart or {c.counter_set for c in device.consumes_counters} <= here
    assert len(msgspec.json.encode(specs)) < count * 48_000


def test_what_ails_a_card_is_a_taint_and_never_takes_a_device_away() -> None:
    healthy = taints(card())
    assert not any(healthy.values())
    for state, key in (
        (card(health=Health.LOST), device_names.UNHEALTHY),
        (DeviceSnapshot(device=card(), mode=None, held=(), orphans=(AllocationId("x"),)), device_names.UNHEALTHY),
        (DeviceSnapshot(device=card(), mode=None, held=(), unmanaged=(STRANGER,)), device_names.STRANGER),
        (
            snapshot_with(card(), "pod-1", Slice(device=card().uuid, memory_mib=1, core_percent=1)),
            device_names.OTHER_API,
        ),
    ):
        found = taints(state)
        assert set(found) == set(healthy)
        assert found.pop(f"{WHOLE}-observed") == set(), "what is unwell is looked at"
        assert set(map(frozenset, found.values())) == {frozenset({key})}
    assert set(taints(card(), replace(FACTS, closed="cordoned"))[WHOLE]) == {device_names.CORDONED}
    held = snapshot_with(card(), claim_allocation("c-1"), Slice(device=card().uuid, memory_mib=1, core_percent=1))
    assert not any(taints(held, replace(FACTS, claimed={claim_allocation("c-1")})).values())


def test_who_only_looks_takes_nothing_of_a_card_and_keeps_nobody_from_it() -> None:
    found = devices_of(slices_of(snapshot(card()), FACTS))[f"{WHOLE}-observed"]
    assert (found.consumes_counters, found.capacity, found.allow_multiple_allocations) == ((), {}, None)
    assert found.attributes["mode"].string == "observed"
    assert "gpu.nvidia.com/type" not in found.attributes


def test_what_an_instance_that_stays_is_in_the_way_of_is_tainted() -> None:
    found = taints(card(mig_instances=(MigInstance(profile="3g.40gb", start=4, fixed=True),)))
    assert not found[f"{WHOLE}-mig-3g-40gb-4"]
    assert not found[f"{WHOLE}-mig-4g-40gb-0"]
    assert found[f"{WHOLE}-mig-1g-10gb-5"] == found[WHOLE] == found[VGPU] == {device_names.KEPT}


def test_cards_below_one_pcie_root_say_so(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / "0000:01:00.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0")
    roots = pcie_roots([card(0), card(1), card(2, pci_bus_id="?")], PciTree(tmp_path))
    assert roots == {card(0).uuid: "pci0000:00"}
    found = devices_of(slices_of(snapshot(card(0)), replace(FACTS, pcie_roots=roots)))
    assert found[VGPU].attributes["resource.kubernetes.io/pcieRoot"].string == "pci0000:00"


def test_a_card_that_its_operator_keeps_in_a_mode_is_offered_in_that_one_and_as_long_as_it_is_used() -> None:
    kept = card(pinned="vgpu")
    assert set(taints(kept)) == {VGPU, f"{WHOLE}-observed"}
    used = snapshot_with(kept, "c", Slice(device=kept.uuid, memory_mib=0, core_percent=0), mode="timeslice")
    assert set(taints(used)) == {VGPU, f"{WHOLE}-timeslice", f"{WHOLE}-observed"}


@pytest.mark.parametrize("mode", ["exclusive", "vgpu", "timeslice", "mps", "passthrough"])
def test_counters_stand_beside_cards_that_can_be_given_in_more_than_one_way_and_beside_no_others(mode: str) -> None:
    kept, other = card(0, pinned=mode), card(1, pinned=mode)
    for specs in (slices_of(snapshot(kept, other), FACTS, features) for features in (APART, TOGETHER)):
        assert len(devices_of(specs)) == 4, "each in its mode, and to be looked at"
        assert not any(device.consumes_counters for device in devices_of(specs).values())
        assert not any(spec.shared_counters for spec in specs)
    for specs in (slices_of(snapshot(kept, card(1)), FACTS, features) for features in (APART, TOGETHER)):
        given_out = [one for name, one in devices_of(specs).items() if not name.endswith("-observed")]
        assert all(device.consumes_counters for device in given_out)
        assert len([one for spec in specs for one in spec.shared_counters]) == 2


def test_a_card_that_is_still_used_otherwise_than_it_is_kept_has_counters() -> None:
    kept = card(pinned="vgpu")
    used = snapshot_with(kept, "c", Slice(device=kept.uuid, memory_mib=0, core_percent=0), mode="timeslice")
    found = devices_of(slices_of(snapshot(used), FACTS))
    assert found[VGPU].consumes_counters == found[f"{WHOLE}-timeslice"].consumes_counters != ()


def test_a_server_without_shared_counters_is_told_of_whole_cards_that_are_well() -> None:
    old = ServerFeatures(counters=False, shares=False, taints=False)
    specs = slices_of(snapshot(card(0), card(1, health=Health.SUSPECT)), FACTS, old)
    (device,) = devices_of(specs).values()
    assert (device.name, device.consumes_counters, device.taints) == (WHOLE, (), ())


def test_names_of_slices_are_names_for_the_api_server_however_long_the_node_is_called() -> None:
    assert slice_name(NODE, 3) == "gpu-1-calabash.dev-3"
    assert len(slice_name("n" * 253, 12)) < 253
    assert slice_name("n" * 253, 0) != slice_name("n" * 252 + "m", 0)


AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.sampled_from(["128Mi", "1Gi", "10Gi", "33Gi", "7G", "79Gi"]),
        "cores": st.sampled_from(["0", "1", "14", "50", "100"]),
    },
)


@given(
    st.sampled_from(sorted(GEOMETRIES)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), AMOUNTS), max_size=24),
    st.sampled_from(["", "vgpu", "mps", "timeslice", "mig"]),
    st.booleans(),
)
def test_what_the_counters_admit_together_the_agent_admits_one_by_one(
    model: str, wanted: list[tuple[float, dict[str, str]]], narrowed: str, kept: bool
) -> None:
    device = card(mig=GEOMETRIES[model], pinned=narrowed if kept else "")
    allocator = Allocator(slices_of(snapshot(device), FACTS))
    offered = [name for name in sorted(allocator.devices) if narrowed in name and not name.endswith("-observed")]
    held: list[HeldSlice] = []
    mode_now: ModeName | None = None
    for share, asked in wanted:
        result = allocator.take(offered[int(share * len(offered))], asked)
        if result is None:
            continue
        plan = claim_plan(claim_of(result), NODE, (device,))
        (part,) = plan.placement(NODE).slices
        answer = fits(device, mode_now, held, request_of(plan.mode, plan.policy, part), place=part.place)
        assert not isinstance(answer, Misfit), answer.message
        assert answer == part
        held.append(HeldSlice(slice=part, policy=plan.policy))
        mode_now = mode_of_device(plan.mode)


def claim_of(result: AllocatedDevice) -> ResourceClaim:
    allocation = ClaimAllocation(devices=AllocatedDevices(results=(result,)))
    return ResourceClaim(metadata=ObjectMeta(name="c", uid="u"), status=ResourceClaimStatus(allocation=allocation))


def request_of(mode: ModeName, policy: ComputePolicy, part: Slice) -> GpuRequest:
    """Return the request that the agent makes for a slice of a plan."""
    if mode == "mig":
        return GpuRequest(mig=part.profile)
    memory_mib = None if mode in {"exclusive", "passthrough"} or not part.memory_mib else part.memory_mib
    return GpuRequest(memory_mib=memory_mib, core_percent=part.core_percent or 100, mode=mode, policy=policy)
