"""Tests of MIG devices in CUDA programs: visibility, size, and isolation from other instances."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.sim_cuda_programs import CudaNode, ask
from tests.native.sim_mig import C1, C2, C3, ONE, THREE, TWO, create_partitions
from tests.native.simnode import Node, compile_holder, simctl

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG needs root, as on a real card")

MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CudaNode]:
    made = CudaNode(tmp_path / "node.state", "2xA100-80GB,T4")
    yield made
    made.close()


def bare(uuid: str) -> str:
    return uuid.partition("-")[2]


def visible_devices(node: CudaNode, **extra: str) -> list[str]:
    return node.run("sim_cuda_load", "devices", **extra).split()


def cuda(node: CudaNode, program: str, **extra: str) -> str:
    """Return what a Python program with the driver loaded and initialized prints."""
    source = (
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\nassert cuda.cuInit(0) == 0\n"
        "number, size = ctypes.c_int(), ctypes.c_size_t()\n"
        "def attribute(a):\n"
        "    assert cuda.cuDeviceGetAttribute(ctypes.byref(number), a, 0) == 0\n"
        "    return number.value\n" + program
    )
    done = subprocess.run(
        [sys.executable, "-c", source], env=node.environment(**extra), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def throughput_ms(node: CudaNode, uuid: str) -> float:
    """Return the duration of 200 kernels of a millisecond, by the card's own events."""
    times = []
    for _ in range(3):
        process = node.start("sim_cuda_load", "spin", 200, 1_000_000, CUDA_VISIBLE_DEVICES=uuid)
        times.append(float(ask(process)))
    return statistics.median(times)


def test_process_sees_one_mig_device_and_no_other_device(node: CudaNode) -> None:
    first, second = create_partitions(node.state, 0, [(THREE, 0, [C3]), (THREE, 4, [C3])])
    whole = node.device(1)["uuid"]
    assert visible_devices(node) == [bare(first)]
    assert visible_devices(node, CUDA_VISIBLE_DEVICES=second) == [bare(second)]
    assert visible_devices(node, CUDA_VISIBLE_DEVICES=f"{second},{first}") == [bare(second)]
    assert visible_devices(node, CUDA_VISIBLE_DEVICES=f"{whole},{second}") == [bare(second)]
    assert visible_devices(node, CUDA_VISIBLE_DEVICES=f"{whole}") == [bare(whole)]
    assert visible_devices(node, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [bare(first)]
    old = f"MIG-{node.device(0)['uuid']}/2/0"
    assert visible_devices(node, CUDA_VISIBLE_DEVICES=old) == [bare(second)]


def test_card_in_mig_mode_without_instances_is_no_device(node: CudaNode) -> None:
    create_partitions(node.state, 0, [])
    uuids = [bare(node.device(i)["uuid"]) for i in range(3)]
    assert visible_devices(node, CUDA_DEVICE_ORDER="PCI_BUS_ID") == uuids[1:]


def test_attributes_are_those_of_the_mig_device(node: CudaNode) -> None:
    (uuid,) = create_partitions(node.state, 0, [(TWO, 2, [C2])])
    ask_all = (
        "cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0)\nprint(size.value >> 20, *map(attribute, (16, 38, 37, 40)))"
    )
    whole = node.device(1)["uuid"]
    memory, sms, l2, bus, engines = map(int, cuda(node, ask_all, CUDA_VISIBLE_DEVICES=uuid).split())
    _, all_sms, all_l2, all_bus, all_engines = map(int, cuda(node, ask_all, CUDA_VISIBLE_DEVICES=whole).split())
    assert (memory, sms, all_sms) == (19968, 28, 108)
    assert (l2, bus) == (all_l2 // 4, all_bus // 4)
    assert (engines, all_engines) == (2, 3)


def test_first_version_of_the_uuid_function_returns_the_card(node: CudaNode) -> None:
    (uuid,) = create_partitions(node.state, 0, [(ONE, 0, [C1])])
    program = (
        "text = ctypes.create_string_buffer(16)\n"
        "cuda.cuDeviceGetUuid(text, 0)\nprint(text.raw.hex())\ncuda.cuDeviceGetUuid_v2(text, 0)\nprint(text.raw.hex())"
    )
    said = cuda(node, program, CUDA_VISIBLE_DEVICES=uuid).split()
    assert said == [bare(node.device(0)["uuid"]).replace("-", ""), bare(uuid).replace("-", "")]


def test_throughput_does_not_depend_on_other_instances(node: CudaNode) -> None:
    tenant, *others = create_partitions(node.state, 0, [(TWO, 0, [C2]), (ONE, 2, [C1]), (THREE, 4, [C2, C1])])
    alone_ms = throughput_ms(node, tenant)
    busy = [node.start("sim_cuda_load", "spin", 5000, 5_000_000, CUDA_VISIBLE_DEVICES=uuid) for uuid in others]
    busy += [node.start("sim_cuda_load", "hammer", 3, 40, CUDA_VISIBLE_DEVICES=others[0])]
    for process in busy:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    beside_ms = throughput_ms(node, tenant)
    assert alone_ms == pytest.approx(200, rel=0.01)
    assert beside_ms == pytest.approx(alone_ms, rel=0.01)


def test_compute_instances_share_memory_of_their_gpu_instance_but_not_time(node: CudaNode) -> None:
    large, small = create_partitions(node.state, 0, [(THREE, 0, [C2, C1])])
    busy = node.start("sim_cuda_load", "spin", 5000, 5_000_000, CUDA_VISIBLE_DEVICES=large)
    assert busy.stdin is not None
    busy.stdin.write("\n")
    busy.stdin.flush()
    assert throughput_ms(node, small) == pytest.approx(200, rel=0.01)
    used = node.device(0)["gpu_instances"][0]["used_bytes"]
    taken = int(node.run("sim_cuda_load", "fill", 2, CUDA_VISIBLE_DEVICES=small))
    context = node.device(1)["memory_total_bytes"] and used  # what the busy one holds is not there for the other
    assert 40192 * MIB - 2 * context - 4 * MIB <= taken <= 40192 * MIB - context


def test_full_instance_leaves_the_memory_of_other_instances_free(node: CudaNode) -> None:
    small, large = create_partitions(node.state, 0, [(ONE, 6, [C1]), (THREE, 0, [C3])])
    assert 0.9 < int(node.run("sim_cuda_load", "fill", 2, CUDA_VISIBLE_DEVICES=small)) / (9728 * MIB) <= 1
    assert 0.97 < int(node.run("sim_cuda_load", "fill", 2, CUDA_VISIBLE_DEVICES=large)) / (40192 * MIB) <= 1
    assert [g["used_bytes"] for g in node.device(0)["gpu_instances"]] == [0, 0]


def test_time_of_an_instance_counts_as_its_share_of_the_card(node: CudaNode) -> None:
    (uuid,) = create_partitions(node.state, 0, [(TWO, 0, [C2])])
    ask(node.start("sim_cuda_load", "spin", 108, 1_000_000, CUDA_VISIBLE_DEVICES=uuid))
    assert node.device(0)["busy_ns"] == pytest.approx(28_000_000, abs=200)


def test_process_of_a_destroyed_instance_does_not_use_its_replacement(node: CudaNode, tmp_path: Path) -> None:
    (uuid,) = create_partitions(node.state, 0, [(ONE, 0, [C1])])
    source = (
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\nassert cuda.cuInit(0) == 0\n"
        "print('begun', flush=True)\ninput()\ncontext = ctypes.c_void_p()\n"
        "print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", source],
        env=node.environment(CUDA_VISIBLE_DEVICES=uuid),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    again = Node(tmp_path / "other.state", "T4", compile_holder())
    again.state = node.state
    again.nvml(
        "h = handles()[0]\ngi = nvmlDeviceGetGpuInstanceById(h, 1)\n"
        "nvmlComputeInstanceDestroy(nvmlGpuInstanceGetComputeInstanceById(gi, 0))\n"
        "answer = nvmlGpuInstanceDestroy(gi)"
    )
    (new,) = create_partitions(node.state, 0, [(ONE, 0, [C1])])
    assert new != uuid
    said, _ = program.communicate("\n", timeout=60)
    assert said == "46\n"  # CUDA_ERROR_DEVICE_UNAVAILABLE
    assert visible_devices(node, CUDA_VISIBLE_DEVICES=new) == [bare(new)]


WATCH = """
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(handles()[0], nvmlEventTypeXidCriticalError, events)
import subprocess
for what in INJECT:
    subprocess.run([TOOL, "inject", os.environ["CALABASH_SIM"], "--gpu", *what], check=True)
answer = []
for _ in INJECT:
    e = nvmlEventSetWait_v2(events, 5000)
    answer.append([e.eventData, e.gpuInstanceId, e.computeInstanceId])
"""


def test_error_is_contained_in_its_instance_and_names_it(node: CudaNode, tmp_path: Path) -> None:
    first, second = create_partitions(node.state, 0, [(ONE, 0, [C1]), (THREE, 4, [C3])])
    struck, spared = (node.start("sim_cuda_load", "wait", CUDA_VISIBLE_DEVICES=uuid) for uuid in (first, second))
    watcher = Node(tmp_path / "other.state", "T4", compile_holder())
    watcher.state = node.state
    tool = Path(simctl("models").args[0])
    inject = [[first, "xid", "31"], [first, "ecc-double"], ["0", "xid", "13"]]
    none = 0xFFFFFFFF
    answer = watcher.nvml(WATCH.replace("INJECT", repr(inject)).replace("TOOL", repr(str(tool))))
    assert answer == [[31, 1, 0], [94, 1, 0], [13, none, none]]
    assert ask(struck) == "214 214 214"  # CUDA_ERROR_ECC_UNCORRECTABLE
    assert ask(spared) == "0 0 0"
    assert node.device(0)["ecc_volatile_double"] == 1


@pytest.mark.parametrize(("model", "stays"), [("A100-80GB", True), ("H100-80GB", False)])
def test_reboot_removes_instances_and_keeps_mig_mode_on_ampere_only(tmp_path: Path, model: str, stays: bool) -> None:
    made = CudaNode(tmp_path / "node.state", model)
    create_partitions(made.state, 0, [(ONE, 0, [C1])])
    assert simctl("reboot", made.state).returncode == 0
    device = made.device(0)
    assert (device["mig_enabled"], device["gpu_instances"], device["compute_instances"]) == (stays, [], [])


def test_reader_without_the_boot_id_removes_nothing(node: CudaNode) -> None:
    uuid, _ = create_partitions(node.state, 0, [(ONE, 0, [C1]), (THREE, 4, [C3])])
    node.start("sim_cuda_load", "wait", CUDA_VISIBLE_DEVICES=uuid)
    before = node.device(0)
    covered = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", 'mount -t tmpfs tmpfs /proc; exec "$@"']
    tool = simctl("models").args[0]
    subprocess.run([*covered, "sh", tool, "show", node.state], capture_output=True, timeout=60, check=True)
    after = node.device(0)
    assert (len(before["compute_instances"]), before["used_bytes"] > 0) == (2, True)
    for what in ("mig_enabled", "gpu_instances", "compute_instances", "used_bytes"):
        assert after[what] == before[what], what


def test_node_in_use_is_not_rebooted(node: CudaNode) -> None:
    node.start("sim_cuda_load", "wait")
    refused = simctl("reboot", node.state)
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (1, "error: 1 process still uses this node")
