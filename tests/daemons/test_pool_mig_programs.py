"""Pool with MIG: programs on instances, cards that change mode, and the death of pools and machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from bench._lab import KERNELS, program
from tests.daemons.world import NATIVE, Program, World, until

from calabash.adapters.gpu.library import simulated_library_dir
from calabash.adapters.host.cgroups.groups import find_hierarchy
from calabash.adapters.store import open_store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="cutting cards needs root, as on a real one")
kernel_membership = pytest.mark.skipif(find_hierarchy() is None, reason="needs control groups")

MakeWorld = Callable[..., World]
MULTIPROCESSORS = 108
GPUS = "2xA100-80GB,1xH100,1xT4"

REPORT = """
import ctypes, json, os, sys
from pynvml import *
cuda = ctypes.CDLL("libcuda.so.1")
count, total, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(96)
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0 and cuda.cuDeviceGetName(name, 96, 0) == 0
context, address = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
too_much = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(total.value + (1 << 30)))
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)) == 0
nvmlInit()
mine = nvmlDeviceGetHandleByIndex(0)
card = nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mine)
parts = []
for i in range(nvmlDeviceGetMaxMigDeviceCount(card)):
    try: parts.append(nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(card, i)))
    except NVMLError: pass
refused = 0
try: nvmlDeviceSetMigMode(card, 0)
except NVMLError as e: refused = e.value
print(json.dumps({"cuda": count.value, "mib": total.value >> 20, "name": name.value.decode(), "too_much": too_much,
    "nvml": nvmlDeviceGetCount(), "index": nvmlDeviceGetIndex(mine), "uuid": nvmlDeviceGetUUID(mine), "parts": parts,
    "pids": [p.pid for p in nvmlDeviceGetComputeRunningProcesses(mine)], "refused": refused, "own": os.getpid(),
    "variable": os.environ["CUDA_VISIBLE_DEVICES"]}), flush=True)
sys.stdin.read()
"""


def reporting(world: World, **body: Any) -> tuple[Program, dict[str, Any]]:
    """Start a program on a MIG instance; return it and its report of the devices that it sees."""
    program, _ = world.running(sys.executable, "-c", REPORT, mode="mig", **body)
    until(lambda: program.says("}\n") or program.dead(), what="the program to look around")
    seen: dict[str, Any] = json.loads(program.output.splitlines()[-1])
    return program, seen


def cards(world: World) -> list[dict[str, Any]]:
    """Return the state of the simulated cards with their MIG instances, from the simulator's tool."""
    shown = subprocess.run(
        [NATIVE / "simgpu" / "calabash-simctl", "show", world.state_file, "--json"], capture_output=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(shown.stdout)["devices"]
    return found


def standing(world: World) -> list[list[tuple[int, int]]]:
    return [[(g["start"], g["size"]) for g in card["gpu_instances"]] for card in cards(world)]


def test_a_program_sees_its_instance_and_nothing_else(make_world: MakeWorld) -> None:
    world = make_world(GPUS)
    world.up()
    _, first = reporting(world, memory_mib=9000)
    _, second = reporting(world, memory_mib=30_000)
    for seen, mib, name in ((first, 9728, "MIG 1g.10gb"), (second, 40192, "MIG 3g.40gb")):
        assert (seen["cuda"], seen["nvml"], seen["index"], seen["mib"]) == (1, 1, 0, mib)
        assert seen["name"].endswith(name)
        assert seen["too_much"] == 2  # out of memory
        assert seen["parts"] == [seen["uuid"]] == [seen["variable"]]
        assert seen["pids"] == [seen["own"]]
        assert seen["refused"] == 4  # no permission
    assert first["uuid"] != second["uuid"]
    assert sorted(map(len, standing(world))) == [0, 0, 0, 2]
    until(
        lambda: [a["slices"][0]["memory_used_mib"] for a in world.allocations()] == [1024 + 424, 1024 + 424],
        what="what each holds to be told",
    )
    assert world.events("stranger") == []


def test_cards_of_one_request_are_cut_each_where_it_has_room(make_world: MakeWorld) -> None:
    world = make_world("2xA100-80GB")
    world.up()
    devices = [device["uuid"] for device in world.devices()]
    world.running("cat", mig="4g.40gb", uuids=[devices[0]])
    world.running("cat", mig="1g.10gb", uuids=[devices[1]])
    _, both = world.running("cat", mig="3g.40gb", gpus=2)
    assert {part["device"]: part["start"] for part in both["slices"]} == dict(zip(devices, (4, 0), strict=True))
    assert sorted(sorted(places) for places in standing(world)) == [[(0, 4), (4, 4)], [(0, 4), (6, 1)]]


@kernel_membership
def test_small_tenants_share_an_instance_and_its_memory_and_nothing_else(make_world: MakeWorld) -> None:
    world = make_world("A100-80GB")
    world.up()
    programs, seen = zip(*(reporting(world, mig="1c.3g.40gb") for _ in range(3)), strict=True)
    assert {one["mib"] for one in seen} == {40192}
    assert all(one["name"].endswith("MIG 1c.3g.40gb") and one["parts"] == [one["uuid"]] for one in seen)
    assert len({one["uuid"] for one in seen}) == 3
    assert [len(places) for places in standing(world)] == [1]
    (card,) = world.client.get("/v1/mig")["items"]
    (instance,) = card["instances"]
    assert [part["start"] for part in instance["parts"]] == [0, 1, 2]
    assert {part["uuid"] for part in instance["parts"]} == {one["uuid"] for one in seen}
    world.kill()
    world.up()
    assert sorted(a["state"] for a in world.allocations()) == ["running"] * 3
    fourth, other = reporting(world, mig="1c.3g.40gb")
    assert [len(places) for places in standing(world)] == [2]
    for tenant in (*programs, fourth):
        tenant.finish()
    until(lambda: not world.allocations(), what="the slices to come back")
    _, whole = reporting(world, mig="3g.40gb")
    assert whole["uuid"] not in {one["uuid"] for one in (*seen, other)}
    assert whole["name"].endswith("MIG 3g.40gb")
    assert world.events("mended") == []


def test_time_on_an_instance_of_a_program_without_the_library_is_what_the_driver_tells(make_world: MakeWorld) -> None:
    """The driver reports the busy time of instances only for cards from Hopper on."""
    world = make_world("H100")
    world.up()
    words = ("--kernels", str(KERNELS), "--kernel-us", "900", "--seconds", "5")
    load, allocation = world.running(
        "env", "-u", "LD_PRELOAD", str(program("gpuload")), *words, mode="mig", mig="2g.20gb"
    )

    def used_percent() -> float:
        return max((s["core_used_percent"] for a in world.allocations() for s in a["slices"]), default=0.0)

    until(lambda: 14 < used_percent() <= 28, what="its use to be shown")
    until(load.dead, what="the load to end")
    until(lambda: not world.allocations(), what="the slice to come back")
    world.kill(signal.SIGTERM)
    store = open_store(f"sqlite:///{world.home}/pool.db")
    used_s = sum(r.used_gpu_s for r in store.usage(allocation["id"]))
    store.close()
    assert 3 * 0.28 < used_s <= 6 * 0.28


@pytest.mark.parametrize(("profile", "multiprocessors", "percent"), [("2g.20gb", 28, 28), ("1c.3g.40gb", 14, 14)])
def test_time_on_an_instance_is_metered_as_the_card_has_spent_it(
    make_world: MakeWorld, profile: str, multiprocessors: int, percent: int
) -> None:
    """A load with pauses is metered as the simulator has accounted it, and an idle tenant on the card has no GPU time."""
    world = make_world("A100-80GB")
    world.up()
    neighbour, other = world.running("cat", mode="mig", mig="1c.3g.40gb")
    before_ns = cards(world)[0]["busy_ns"]
    words = ("--kernels", str(KERNELS), "--kernel-us", "900", "--think-us", "400", "--seconds", "4")
    load, allocation = world.running(str(program("gpuload")), *words, mode="mig", mig=profile)

    def used_percent() -> float:
        slices = {a["id"]: a["slices"] for a in world.allocations()}
        return float(slices[allocation["id"]][0]["core_used_percent"]) if allocation["id"] in slices else 0.0

    until(lambda: 0 < used_percent() <= percent, what="its use to be shown")
    until(load.dead, what="the load to end")
    spent_s = (cards(world)[0]["busy_ns"] - before_ns) / 1e9 * MULTIPROCESSORS / multiprocessors
    neighbour.finish()
    until(lambda: not world.allocations(), what="the slices to come back")
    world.kill(signal.SIGTERM)
    store = open_store(f"sqlite:///{world.home}/pool.db")
    used_s = {name: sum(r.used_gpu_s for r in store.usage(name)) for name in (allocation["id"], other["id"])}
    store.close()
    assert spent_s > 0.2  # enough to detect a deviation of five percent
    assert used_s[allocation["id"]] == pytest.approx(spent_s * percent / 100, rel=0.05)
    assert used_s[other["id"]] < 0.01


def test_a_card_changes_its_mode_when_it_is_idle_and_only_then(make_world: MakeWorld) -> None:
    world = make_world("A100-80GB")
    world.up()
    program, _ = reporting(world, memory_mib=9000)
    waiting = world.run("cat", memory_mib=9000, mode="vgpu", wait_s=60)
    until(lambda: any(a["state"] == "pending" for a in world.allocations()), what="the other mode to wait")
    assert cards(world)[0]["mig_enabled"]
    program.finish()
    until(lambda: world.allocation_of(waiting), what="the card to change")
    assert not cards(world)[0]["mig_enabled"]
    assert world.devices()[0]["mode"] == "vgpu"
    waiting.finish()
    until(lambda: not world.allocations(), what="the slice to come back")
    _, seen = reporting(world, memory_mib=30_000)
    assert seen["mib"] == 40192


@kernel_membership
def test_programs_go_on_when_the_pool_is_killed_and_idle_instances_are_known_again(make_world: MakeWorld) -> None:
    world = make_world("A100-80GB")
    world.up()
    kept, seen = reporting(world, memory_mib=9000)
    gone, _ = reporting(world, memory_mib=30_000)
    gone.finish()
    until(lambda: len(world.allocations()) == 1, what="the slice to come back")
    world.kill()
    world.up()
    assert kept.alive()
    assert [a["state"] for a in world.allocations()] == ["running"]
    _, large = reporting(world, memory_mib=30_000)  # the same instance, or one in its place: both belong to the pool
    assert large["uuid"] != seen["uuid"]
    assert world.events("stranger") == []
    assert world.events("mended") == []


@kernel_membership
def test_a_pool_that_is_killed_while_it_cuts_leaves_nothing_that_is_in_the_way(make_world: MakeWorld) -> None:
    """The pool is killed at many moments of a grant. Afterwards one instance of the whole card can be granted."""
    world = make_world("A100-80GB")
    world.up()
    for delay_ms in (1, 4, 8, 14):
        asking = world.run("true", mode="mig", memory_mib=9000)
        time.sleep(delay_ms / 1000)
        world.kill(signal.SIGKILL)
        asking.finish()
        world.up()
        until(lambda: not world.allocations(), what="what was half granted to be given back")
    whole, seen = reporting(world, memory_mib=79_000)
    assert seen["mib"] == 80896
    assert standing(world) == [[(0, 8)]]
    whole.finish()


@kernel_membership
def test_after_a_reboot_cards_are_cut_again(make_world: MakeWorld) -> None:
    world = make_world("A100-80GB,H100")
    world.up()
    before = [reporting(world, memory_mib=30_000)[1]["uuid"] for _ in range(2)]
    world.kill()
    for tenant in world.programs:
        tenant.close()
    world.programs.clear()
    subprocess.run([NATIVE / "simgpu" / "calabash-simctl", "reboot", world.state_file], check=True)
    assert standing(world) == [[], []]
    world.up()
    until(lambda: not world.allocations(), what="those whose programs are gone to end")
    _, seen = reporting(world, memory_mib=30_000)
    assert seen["mib"] in {40192, 40448}
    assert seen["uuid"] not in before


def test_instance_with_an_unmanaged_process_is_reported_and_not_granted(
    make_world: MakeWorld,
) -> None:
    world = make_world("A100-80GB")
    world.up()
    program, seen = reporting(world, memory_mib=9000)
    beside = {
        **world.environment,
        "LD_LIBRARY_PATH": str(simulated_library_dir()),
        "CALABASH_SIM": str(world.state_file),
    }
    program.finish()
    until(lambda: not world.allocations(), what="the slice to come back")
    hold = "import ctypes, sys\ncuda = ctypes.CDLL('libcuda.so.1')\nc = ctypes.c_void_p()\n"
    hold += "assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == 0\n"
    hold += "print('held', flush=True)\nsys.stdin.read()"
    unmanaged = subprocess.Popen(
        [sys.executable, "-c", hold],
        env={**beside, "CUDA_VISIBLE_DEVICES": seen["uuid"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert unmanaged.stdout is not None
        assert unmanaged.stdout.readline() == b"held\n"
        _, other = reporting(world, memory_mib=9000)  # at once: the pool still believes that the instance is idle
        assert other["uuid"] != seen["uuid"]
        until(lambda: world.events("stranger"), what="the unmanaged process to be told of")
        assert str(unmanaged.pid) in world.events("stranger")[0]["message"]
    finally:
        unmanaged.kill()
        unmanaged.wait()
    until(lambda: world.events("stranger_gone"), what="the unmanaged process to be gone")


def test_instances_made_past_the_pool_are_reported_and_kept(make_world: MakeWorld) -> None:
    world = make_world("A100-80GB")
    world.up()
    reporting(world, memory_mib=9000)
    cut = (
        "import ctypes\nfrom pynvml import *\nnvmlInit()\nh = nvmlDeviceGetHandleByIndex(0)\n"
        "p = c_nvmlGpuInstancePlacement_t(0, 2)\nnvmlDeviceCreateGpuInstanceWithPlacement(h, 14, ctypes.byref(p))"
    )
    beside = {
        **world.environment,
        "LD_LIBRARY_PATH": str(simulated_library_dir()),
        "CALABASH_SIM": str(world.state_file),
    }
    subprocess.run([sys.executable, "-c", cut], env=beside, check=True)
    told = until(lambda: world.events("mended"), what="the instance to be told of")
    assert told[0]["message"] == "a 2g.20gb at 0 on device 0 was created from outside the pool"
    _, seen = reporting(world, memory_mib=15_000)
    assert seen["mib"] == 19968
    assert (0, 2) in standing(world)[0]
