"""Tests of the tenant's view: every figure it sees is its slice's, and all of them agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.native.shim_world import GIB, MIB, NOT_PERMITTED, SUCCESS, Slot, World, program
from tests.native.simnode import until

PROBE = """
import json, sys
import pynvml as nvml

nvml.nvmlInit()
out = {"count": nvml.nvmlDeviceGetCount(), "devices": []}
for index in range(out["count"]):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    memory2 = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    out["devices"].append({
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "index": nvml.nvmlDeviceGetIndex(handle),
        "memory": [memory.total, memory.free, memory.used],
        "memory2": [memory2.total, memory2.free, memory2.used],
        "pids": sorted(p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        "name": nvml.nvmlDeviceGetName(handle),
    })

def answer(call, *arguments):
    try:
        call(*arguments)
        return 0
    except nvml.NVMLError as error:
        return error.value

out["beyond"] = answer(nvml.nvmlDeviceGetHandleByIndex, out["count"])
out["foreign"] = [answer(nvml.nvmlDeviceGetHandleByUUID, uuid) for uuid in sys.argv[1:]]
handle = nvml.nvmlDeviceGetHandleByIndex(0)
out["own pci"] = answer(nvml.nvmlDeviceGetHandleByPciBusId, nvml.nvmlDeviceGetPciInfo(handle).busId)
out["setters"] = [
    answer(nvml.nvmlDeviceSetPersistenceMode, handle, 1),
    answer(nvml.nvmlDeviceSetComputeMode, handle, 2),
    answer(nvml.nvmlDeviceSetPowerManagementLimit, handle, 100000),
    answer(nvml.nvmlDeviceSetMigMode, handle, 1),
    answer(nvml.nvmlDeviceSetGpuLockedClocks, handle, 100, 200),
]
print(json.dumps(out))
"""


def probe(slot: Slot, *foreign: str) -> dict[str, Any]:
    path = os.pathsep.join(p for p in sys.path if p.endswith("site-packages"))
    seen: dict[str, Any] = json.loads(slot.run(sys.executable, "-c", PROBE, *foreign, PYTHONPATH=path))
    return seen


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path, "4xA100-40GB")


def test_driver_and_nvml_show_the_slice_and_agree(world: World) -> None:
    slot = world.slot(cap=3 * GIB)
    with slot.start_holder(GIB):
        left, total, whole, count = (int(word) for word in slot.tenant("view").split())
        assert (left, total, whole, count) == (2 * GIB, 3 * GIB, 3 * GIB, 1)
        (device,) = probe(slot)["devices"]
        assert device["memory"] == device["memory2"] == [3 * GIB, 2 * GIB, GIB]


def test_memory_of_a_killed_sibling_is_shown_as_free_at_once(world: World) -> None:
    """No agent runs; the next program queries the free memory before it allocates."""
    slot = world.slot(cap=3 * GIB)
    with slot.start_holder(GIB):
        assert slot.tenant("view").split()[0] == str(2 * GIB)
    assert slot.tenant("view").split()[0] == str(3 * GIB), "cuMemGetInfo"
    with slot.start_holder(GIB):
        pass
    (device,) = probe(slot)["devices"]
    assert device["memory"] == device["memory2"] == [3 * GIB, 3 * GIB, 0], "NVML"


def test_memory_that_the_agent_found_uncharged_is_shown_as_used(world: World) -> None:
    slot = world.slot(cap=3 * GIB)
    slot.limits.set_residual(0, 100 * MIB)
    assert slot.tenant("view").split()[0] == str(3 * GIB - 100 * MIB)
    assert probe(slot)["devices"][0]["memory"] == [3 * GIB, 3 * GIB - 100 * MIB, 100 * MIB]


def test_nvml_shows_the_devices_of_the_slice_only_numbered_from_zero(world: World) -> None:
    uuids = world.uuids()
    seen = probe(world.slot(devices=(2, 1)), uuids[0], uuids[3], uuids[1])
    assert seen["count"] == 2
    assert [(d["index"], d["uuid"]) for d in seen["devices"]] == [(0, uuids[2]), (1, uuids[1])]
    assert seen["beyond"] == 2  # NVML_ERROR_INVALID_ARGUMENT
    assert seen["foreign"] == [6, 6, 0]  # NVML_ERROR_NOT_FOUND
    assert seen["own pci"] == 0
    assert {d["name"] for d in seen["devices"]} == {"NVIDIA A100-SXM4-40GB"}


def test_nothing_that_changes_a_card_is_permitted(world: World) -> None:
    assert set(probe(world.slot())["setters"]) == {4}  # NVML_ERROR_NO_PERMISSION


def test_process_lists_hold_the_container_and_not_its_neighbours(world: World) -> None:
    mine, other = world.slot("mine"), world.slot("other")
    with mine.start_holder(MIB) as one, other.start_holder(MIB) as two:
        assert probe(mine)["devices"][0]["pids"] == [one.pid]
        assert probe(other)["devices"][0]["pids"] == [two.pid]


@pytest.mark.parametrize(
    ("asked", "count"),
    [(None, 2), ("0", 1), ("1,0", 2), ("5", 0), ("", 0), ("0,7,1", 1), ("-1", 0)],
)
def test_visible_devices_count_within_the_slice(world: World, asked: str | None, count: int) -> None:
    slot = world.slot(devices=(3, 1))
    more = {} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}
    assert slot.run(program("devices"), **more).split("\n")[0] == str(count)


def test_visible_devices_are_the_slices_in_the_order_asked_for(world: World) -> None:
    uuids = [uuid.removeprefix("GPU-") for uuid in world.uuids()]
    slot = world.slot(devices=(3, 1))
    assert slot.run(program("devices")).split("\n")[1:] == [uuids[3], uuids[1]]
    assert slot.run(program("devices"), CUDA_VISIBLE_DEVICES="1,0").split("\n")[1:] == [uuids[1], uuids[3]]
    by_name = f"GPU-{uuids[1]}"
    assert slot.run(program("devices"), CUDA_VISIBLE_DEVICES=by_name).split("\n")[1:] == [uuids[1]]


def test_card_outside_the_slice_cannot_be_asked_for(world: World) -> None:
    foreign = world.uuids()[0]
    assert world.slot(devices=(3,)).run(program("devices"), CUDA_VISIBLE_DEVICES=foreign) == "0"


def test_container_is_shown_the_devices_of_the_requests_that_it_names(world: World) -> None:
    uuids = world.uuids()
    own = [uuid.removeprefix("GPU-") for uuid in uuids]
    slot = world.slot(devices=(3, 1, 2), cap=GIB)
    assert slot.run(program("devices"), CALABASH_REQUEST_1="1").split() == ["1", own[1]]
    both = {"CALABASH_REQUEST_0": "2", "CALABASH_REQUEST_7": "0"}
    assert slot.run(program("devices"), **both).split() == ["2", own[3], own[2]]
    assert slot.run(program("devices"), CUDA_VISIBLE_DEVICES="1,0", **both).split() == ["2", own[2], own[3]]
    assert slot.run(program("devices"), CUDA_VISIBLE_DEVICES=uuids[1], **both) == "0"
    with slot.start_holder(600 * MIB, CALABASH_REQUEST_1="1"):
        assert [slot.usage.device(i).used_bytes for i in (0, 1, 2)] == [0, 600 * MIB, 0]


def test_nvml_shows_the_devices_of_the_requests_numbered_from_zero(world: World) -> None:
    uuids = world.uuids()
    path = os.pathsep.join(p for p in sys.path if p.endswith("site-packages"))
    asked = [sys.executable, "-c", PROBE, uuids[1], uuids[2]]
    slot = world.slot(devices=(3, 1, 2))
    seen = json.loads(slot.run(*asked, PYTHONPATH=path, CALABASH_REQUEST_0="0", CALABASH_REQUEST_1="2"))
    assert [(d["index"], d["uuid"]) for d in seen["devices"]] == [(0, uuids[3]), (1, uuids[2])]
    assert (seen["beyond"], seen["foreign"]) == (2, [6, 0])


@pytest.mark.parametrize("places", ["", "9", "-1", "99999999999999999999", "x", "1,,2", ",", "0x1"])
def test_device_numbers_beyond_the_slot_show_no_device(world: World, places: str) -> None:
    shown = slot_count(world, places)
    assert shown == {"1,,2": 1, "0x1": 1}.get(places, 0)


def slot_count(world: World, places: str) -> int:
    """Return the number of visible devices for a program with these device numbers of a slot of two."""
    return int(world.slot(devices=(3, 1)).run(program("devices"), CALABASH_REQUEST_0=places).split()[0])


def test_container_with_two_claims_is_refused(world: World) -> None:
    slot = world.slot()
    assert slot.tenant("init", CALABASH_CLAIM_1="ml/one") == str(SUCCESS)
    process = slot.start(program("tenant"), "init", CALABASH_CLAIM_1="ml/one", CALABASH_CLAIM_2="ml/two")
    out, err = process.communicate(timeout=120)
    assert out.strip() == str(NOT_PERMITTED)
    assert "ml/one" in err
    assert "ml/two" in err
    assert "hint" in err


def test_each_device_of_a_slice_has_its_own_counters(world: World) -> None:
    slot = world.slot(devices=(2, 0), cap=GIB)
    with slot.start_holder(600 * MIB, CUDA_VISIBLE_DEVICES="1"):
        assert [slot.usage.device(i).used_bytes for i in (0, 1)] == [0, 600 * MIB]
        assert slot.tenant("alloc", 600 * MIB, CUDA_VISIBLE_DEVICES="0") == str(SUCCESS)
        assert world.device(0)["alloc_bytes"] == 600 * MIB


def test_program_without_a_slot_gets_no_device(world: World) -> None:
    environment = world.slot().environment() | {"CALABASH_SLOT": "/nowhere"}
    done = subprocess.run([str(program("tenant")), "init"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(NOT_PERMITTED)


NEIGHBOURS = """
import ctypes, json, sys
import pynvml as nvml

nvml.nvmlInit()
own = nvml.nvmlDeviceGetHandleByIndex(0)
found = []
for level in (0, 10, 20, 30, 40, 50):
    found += nvml.nvmlDeviceGetTopologyNearestGpus(own, level)
everywhere = nvml.nvmlSystemGetTopologyGpuSet(0)
print(json.dumps([sorted(nvml.nvmlDeviceGetUUID(h) for h in handles) for handles in (found, everywhere)]))
"""

UTILIZATION = """
import sys
import pynvml as nvml

nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
code = 0
try:
    samples = nvml.nvmlDeviceGetProcessUtilization(handle, 0)
except nvml.NVMLError as error:
    samples, code = [], error.value
print(nvml.nvmlDeviceGetUtilizationRates(handle).gpu, len(samples), code)
"""


def site_packages() -> str:
    return os.pathsep.join(p for p in sys.path if p.endswith("site-packages"))


def test_no_way_through_the_topology_leads_to_a_card_outside_the_slice(world: World) -> None:
    uuids = world.uuids()
    slot = world.slot(devices=(3, 1))
    nearest, everywhere = json.loads(slot.run(sys.executable, "-c", NEIGHBOURS, PYTHONPATH=site_packages()))
    assert nearest == [uuids[1]]
    assert everywhere
    assert set(everywhere) <= {uuids[1], uuids[3]}


def test_utilisation_is_the_slices_own_and_an_idle_slice_has_no_samples(world: World) -> None:
    mine, other = world.slot("mine"), world.slot("other")
    busy = other.start(*other.tenant_command("spin", 100_000))
    assert busy.stdout is not None
    assert busy.stdout.readline() == "ready\n"

    def seen(slot: Slot) -> tuple[int, int, int]:
        used, samples, code = slot.run(sys.executable, "-c", UTILIZATION, PYTHONPATH=site_packages()).split()
        return int(used), int(samples), int(code)

    until(lambda: seen(other)[0] >= 50, "the use of the busy slice to be shown")
    assert seen(mine) == (0, 0, 6), "NVML_ERROR_NOT_FOUND"
    busy.kill()
    busy.communicate()


def test_slice_without_cap_and_policy_limits_visible_devices_only(world: World) -> None:
    """A slice of a whole card, or of a share of its time, limits the visible devices only; the driver answers all else."""
    uuids = world.uuids()
    slot = world.slot(devices=(3, 1), cap=0)
    own = [uuid.removeprefix("GPU-") for uuid in (uuids[3], uuids[1])]
    assert slot.run("env", "-u", "CUDA_VISIBLE_DEVICES", program("devices")).split("\n") == ["2", *own]
    assert slot.run("sh", "-c", f"CUDA_VISIBLE_DEVICES=0,1,2,3 {program('devices')}").split("\n") == ["2", *own]
    seen = probe(slot, uuids[0])
    assert (seen["count"], seen["foreign"]) == (2, [6])
    assert {tuple(d["memory"][:1]) for d in seen["devices"]} == {(40 * GIB,)}
    for action in ("families 3000000", "graph 3000000", "capture 3000000", "reuse 700000000", "contexts"):
        slot.tenant(*action.split())
    with slot.start_holder(600 * MIB):
        assert slot.world.device(3)["alloc_bytes"] == 600 * MIB
        usage = slot.usage.device(0)
        assert (usage.used_bytes, usage.peak_bytes, usage.charged_ns, usage.launch_count) == (0, 0, 0, 0)
        assert {sum(proc.used_bytes) for proc in slot.procs()} == {0}
