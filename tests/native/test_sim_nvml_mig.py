"""Tests of MIG in the simulated NVML, with the real nvidia-ml-py: modes, placements, instances."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native.simnode import Node, compile_holder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG needs root, as on a real card")

ANY, EVEN, LOW_EVEN, HALVES, WHOLE = [0, 1, 2, 3, 4, 5, 6], [0, 2, 4, 6], [0, 2, 4], [0, 4], [0]
# id: compute slices, memory slices, legal starts, most instances
SEVEN = {
    19: (1, 1, ANY, 7),
    20: (1, 1, ANY, 1),
    15: (1, 2, EVEN, 4),
    14: (2, 2, LOW_EVEN, 3),
    9: (3, 4, HALVES, 2),
    5: (4, 4, WHOLE, 1),
    0: (7, 8, WHOLE, 1),
}
FOUR = {
    14: (1, 1, [0, 1, 2, 3], 4),
    21: (1, 1, [0, 1, 2, 3], 1),
    5: (2, 2, [0, 2], 2),
    6: (2, 2, [0, 2], 1),
    0: (4, 4, [0], 1),
}
NAMES = {
    "A30": (FOUR, "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
    "A100-40GB": (SEVEN, "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
    "A100-80GB": (SEVEN, "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
    "H100-80GB": (SEVEN, "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
    "H200-141GB": (SEVEN, "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
    "B200-180GB": (SEVEN, "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
    "GH200-96GB": (SEVEN, "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
    "GB200-186GB": (SEVEN, "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
}
HELPERS = """
import ctypes
def placements(h, profile):
    count = ctypes.c_uint(0)
    nvmlDeviceGetGpuInstancePossiblePlacements(h, profile, None, ctypes.byref(count))
    array = (c_nvmlGpuInstancePlacement_t * count.value)()
    nvmlDeviceGetGpuInstancePossiblePlacements(h, profile, array, ctypes.byref(count))
    return [(p.start, p.size) for p in array]
def create(h, profile, start, size):
    return nvmlDeviceCreateGpuInstanceWithPlacement(h, profile, ctypes.byref(c_nvmlGpuInstancePlacement_t(start, size)))
def compute(gi, profile=None):
    for p in range(NVML_COMPUTE_INSTANCE_PROFILE_COUNT - 1, -1, -1) if profile is None else (profile,):
        try: return nvmlGpuInstanceCreateComputeInstance(gi, p)
        except NVMLError: continue
def error(call, *args):
    try: call(*args)
    except NVMLError as e: return e.value
    return 0
h = handles()[0]
"""


@pytest.fixture(scope="module")
def holder() -> Path:
    return compile_holder()


@pytest.fixture
def node(tmp_path: Path, holder: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node.state", "2xA100-40GB,T4", holder)
    yield made
    made.close()


def ask(node: Node, program: str, *, enable: bool = True) -> Any:
    return node.nvml(HELPERS + ("nvmlDeviceSetMigMode(h, 1)\n" if enable else "") + program)


@pytest.mark.parametrize("model", NAMES)
def test_profiles_and_placements_are_those_of_the_real_card(tmp_path: Path, holder: Path, model: str) -> None:
    answer = ask(
        Node(tmp_path / "n", model, holder),
        """
answer = {}
for profile in range(NVML_GPU_INSTANCE_PROFILE_COUNT):
    try: p = nvmlDeviceGetGpuInstanceProfileInfo(h, profile)
    except NVMLError: continue
    old = nvmlDeviceGetGpuInstanceProfileInfo(h, profile, version=1)
    by_id = nvmlDeviceGetGpuInstanceProfileInfoById(h, p.id)
    assert (p.memorySizeMB, p.multiprocessorCount) == (old.memorySizeMB, old.multiprocessorCount)
    assert by_id.name == p.name
    answer[p.id] = [p.name.decode() if isinstance(p.name, bytes) else p.name, p.sliceCount, placements(h, p.id),
                    p.instanceCount, p.memorySizeMB, p.multiprocessorCount]
""",
        enable=False,
    )
    table, names = NAMES[model]
    assert {a[0].removeprefix("MIG ") for a in answer.values()} == set(names.split())
    for profile, (slices, size, starts, most) in table.items():
        found = answer[str(profile)]
        assert found[1:4] == [slices, [[start, size] for start in starts], most], profile
        whole_mib, whole_sms = answer["0"][4:6]
        assert found[4] <= whole_mib * size / max(s for _, s, _, _ in table.values()) * 1.05
        assert found[5] <= whole_sms


def test_card_without_mig_says_so(node: Node) -> None:
    assert ask(
        node, "t4 = handles()[2]\nanswer = [error(nvmlDeviceGetMigMode, t4), error(nvmlDeviceSetMigMode, t4, 1)]"
    ) == [3, 3]


def test_instances_stand_where_they_were_put_and_nowhere_else(node: Node) -> None:
    answer = ask(
        node,
        """
first = create(h, 9, 4, 4)
info = nvmlGpuInstanceGetInfo(first)
answer = [[info.profileId, info.placement.start, info.placement.size],
          error(create, h, 9, 4, 4),     # taken
          error(create, h, 9, 2, 4),     # not a legal start
          error(create, h, 9, 0, 3),     # not the profile's size
          error(create, h, 99, 0, 1),    # no such profile
          nvmlDeviceGetGpuInstanceRemainingCapacity(h, 19),
          nvmlDeviceGetGpuInstanceRemainingCapacity(h, 5),
          nvmlDeviceGetGpuInstanceRemainingCapacity(h, 0)]
create(h, 5, 0, 4)
answer += [nvmlDeviceGetGpuInstanceRemainingCapacity(h, 19), nvmlDeviceGetMigMode(handles()[1])]
""",
    )
    assert answer == [[9, 4, 4], 23, 2, 2, 2, 4, 1, 0, 0, [0, 0]]


def test_seven_compute_slices_are_all_there_are(node: Node) -> None:
    """Two 3g use all memory slices and leave a compute slice unusable; 1g x 7 leave a memory slice."""
    answer = ask(
        node,
        """
answer = []
def clear():
    for gi in made: nvmlGpuInstanceDestroy(gi)
    made.clear()
made = [nvmlDeviceCreateGpuInstance(h, 9) for _ in range(2)]
answer.append(error(nvmlDeviceCreateGpuInstance, h, 19))
clear()
made = [nvmlDeviceCreateGpuInstance(h, 19) for _ in range(7)]
starts = sorted(nvmlGpuInstanceGetInfo(g).placement.start for g in made)
answer.append([error(nvmlDeviceCreateGpuInstance, h, 19), starts])
clear()
made = [nvmlDeviceCreateGpuInstance(h, 20)]
answer.append([error(nvmlDeviceCreateGpuInstance, h, 20), error(nvmlDeviceCreateGpuInstance, h, 19)])
""",
    )
    assert answer == [23, [23, [0, 1, 2, 3, 4, 5, 6]], [23, 0]]


def test_drivers_own_order_fragments_as_on_a_real_card(node: Node) -> None:
    """Small instances first leave no space for a half; an exact placement does."""
    answer = ask(
        node,
        """
made = [nvmlDeviceCreateGpuInstance(h, p) for p in (19, 19)]
free = nvmlDeviceGetGpuInstanceRemainingCapacity(h, 9)
made += [nvmlDeviceCreateGpuInstance(h, 14)]
for gi in made: nvmlGpuInstanceDestroy(gi)
create(h, 9, 4, 4); create(h, 14, 2, 2); create(h, 19, 0, 1); create(h, 19, 1, 1)
answer = [free, nvmlDeviceGetGpuInstanceRemainingCapacity(h, 19)]
""",
    )
    assert answer == [1, 0]


def test_compute_instance_is_a_device_with_memory_and_a_name_of_its_own(node: Node) -> None:
    answer = ask(
        node,
        """
gi = create(h, 9, 0, 4)
ci = compute(gi)
mig = nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
uuid = nvmlDeviceGetUUID(mig)
attributes, memory = nvmlDeviceGetAttributes(mig), nvmlDeviceGetMemoryInfo(mig)
answer = [nvmlDeviceGetName(mig), uuid[:4], len(uuid), nvmlDeviceIsMigDeviceHandle(mig).value,
          nvmlDeviceIsMigDeviceHandle(h).value,
          nvmlDeviceGetUUID(nvmlDeviceGetHandleByUUID(uuid)) == uuid,
          nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)),
          [attributes.multiprocessorCount, attributes.memorySizeMB, attributes.gpuInstanceSliceCount],
          memory.total >> 20, nvmlDeviceGetMaxMigDeviceCount(h), error(nvmlDeviceGetMigDeviceHandleByIndex, h, 1),
          nvmlDeviceGetGpuInstanceId(mig) == nvmlGpuInstanceGetInfo(gi).id,
          nvmlDeviceGetComputeInstanceId(mig)]
nvmlComputeInstanceDestroy(ci)
answer.append(error(nvmlDeviceGetName, mig))
again = compute(gi)
answer.append(nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(h, 0)) == uuid)
""",
    )
    assert answer == [
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-", 40, 1, 0, True, 0, [42, 19968, 3], 19968, 7, 6, True, 0, 6, False,
    ]  # fmt: skip


def test_compute_instances_share_a_gpu_instance_by_slices(node: Node) -> None:
    answer = ask(
        node,
        """
gi = create(h, 9, 0, 4)
names, made = {}, []
for p in range(NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
    try: info = nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, p, 0)
    except NVMLError: continue
    name = info.name.decode() if isinstance(info.name, bytes) else info.name
    names[name] = [info.sliceCount, info.instanceCount, info.multiprocessorCount]
made = [compute(gi, 0) for _ in range(3)]
answer = [names, error(nvmlGpuInstanceCreateComputeInstance, gi, 0),
          sorted(nvmlComputeInstanceGetInfo(c).placement.start for c in made),
          sorted(nvmlComputeInstanceGetInfo(c).id for c in made), error(nvmlGpuInstanceDestroy, gi)]
for c in made: nvmlComputeInstanceDestroy(c)
answer.append(error(nvmlGpuInstanceDestroy, gi))
""",
    )
    names = {"MIG 1c.3g.20gb": [1, 3, 14], "MIG 2c.3g.20gb": [2, 1, 28], "MIG 3g.20gb": [3, 1, 42]}
    assert answer == [names, 23, [0, 1, 2], [0, 1, 2], 19, 0]


DEVICES = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
name, sms = ctypes.create_string_buffer(96), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetName(name, 96, 0) == 0
assert cuda.cuDeviceGetAttribute(ctypes.byref(sms), 16, 0) == 0  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
print(name.value.decode(), sms.value, sep="|")
"""


def test_part_of_a_gpu_instance_has_a_name_and_multiprocessors_of_its_own(node: Node) -> None:
    """Two and one compute slices of three: 28 and 14 of the 42 multiprocessors."""
    answer = ask(
        node,
        """
gi = create(h, 9, 0, 4)
compute(gi, 1); compute(gi, 0)
migs = [nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(2)]
answer = [[nvmlDeviceGetUUID(m), nvmlDeviceGetName(m), nvmlDeviceGetAttributes(m).multiprocessorCount,
           nvmlDeviceGetAttributes(m).computeInstanceSliceCount] for m in migs]
""",
    )
    card = "NVIDIA A100-SXM4-40GB"
    assert [rest for _, *rest in answer] == [[f"{card} MIG 2c.3g.20gb", 28, 2], [f"{card} MIG 1c.3g.20gb", 14, 1]]
    for uuid, name, sms, _ in answer:
        environment = node.environment | {"CUDA_VISIBLE_DEVICES": uuid}
        done = subprocess.run(
            [sys.executable, "-c", DEVICES], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == f"{name}|{sms}"


def test_process_of_one_compute_instance_is_not_listed_by_another_of_the_same_gpu_instance(node: Node) -> None:
    uuids = ask(
        node,
        """
gi = create(h, 9, 0, 4)
made = [compute(gi, 0) for _ in range(2)]
answer = [nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(h, i)) for i in range(2)]
""",
    )
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD_ALL_BUT_NOT_MORE],
        env=node.environment | {"CUDA_VISIBLE_DEVICES": uuids[1]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline()
        seen = ask(
            node,
            """
migs = [nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(2)]
gi = nvmlDeviceGetGpuInstanceById(h, nvmlDeviceGetGpuInstanceId(migs[0]))
answer = [[[p.pid for p in nvmlDeviceGetComputeRunningProcesses(m)] for m in migs],
          [error(nvmlComputeInstanceDestroy, nvmlGpuInstanceGetComputeInstanceById(gi, i)) for i in (1, 0)]]
""",
            enable=False,
        )
        assert seen == [[[], [program.pid]], [19, 0]]  # 19: in use
    finally:
        program.kill()
        program.wait()


def test_mode_of_a_card_in_use_stays_pending(node: Node) -> None:
    holder = node.hold(0)
    change = """
import ctypes
status = ctypes.c_uint(99)
fn = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceSetMigMode
answer = [fn(h, MODE, ctypes.byref(status)), status.value, nvmlDeviceGetMigMode(h)]
"""
    assert ask(node, change.replace("MODE", "1"), enable=False) == [0, 19, [0, 1]]
    assert holder.end() == 0
    assert ask(node, change.replace("MODE", "1"), enable=False) == [0, 0, [1, 1]]
    assert ask(node, "create(h, 0, 0, 8)\nanswer = 0", enable=False) == 0
    assert ask(node, change.replace("MODE", "0"), enable=False) == [0, 19, [1, 0]]


def test_every_process_sees_the_same_layout(node: Node) -> None:
    ask(node, "compute(create(h, 14, 2, 2)); compute(create(h, 5, 0, 4)) if False else None\nanswer = 0")
    seen = [
        ask(
            node,
            "answer = [nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(h, 0)), nvmlDeviceGetMigMode(h)]",
            enable=False,
        )
        for _ in range(2)
    ]
    assert seen[0] == seen[1]
    shown = node.show()["devices"][0]
    assert shown["mig_enabled"] is True
    assert [(g["start"], g["size"]) for g in shown["gpu_instances"]] == [(2, 2)]


HOLD_ALL_BUT_NOT_MORE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address, free, total = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
fits = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8 << 30))
more = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 << 30))
print(total.value >> 20, fits, more, flush=True)
sys.stdin.read()
"""


def test_cuda_program_on_a_mig_device_has_its_memory_and_keeps_it_from_being_destroyed(node: Node) -> None:
    uuids = ask(
        node,
        """
for profile in (14, 9): compute(nvmlDeviceCreateGpuInstance(h, profile))
answer = [nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(h, i)) for i in range(2)]
""",
    )
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD_ALL_BUT_NOT_MORE],
            env=node.environment | {"CUDA_VISIBLE_DEVICES": uuid},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for uuid in uuids
    ]
    try:
        said = [program.stdout.readline().split() for program in programs if program.stdout is not None]
        assert said == [["9856", "0", "2"], ["19968", "0", "0"]]  # 2: out of memory
        seen = ask(
            node,
            """
migs = [nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(2)]
used_ci = nvmlGpuInstanceGetComputeInstanceById(nvmlDeviceGetGpuInstanceById(h, 1), 0)
answer = [[[p.pid for p in nvmlDeviceGetComputeRunningProcesses(m)] for m in migs],
          sorted(p.gpuInstanceId for p in nvmlDeviceGetComputeRunningProcesses(h)),
          sorted(nvmlDeviceGetGpuInstanceId(m) for m in migs),
          error(nvmlComputeInstanceDestroy, used_ci),
          nvmlDeviceGetMemoryInfo(migs[1]).used - nvmlDeviceGetMemoryInfo(migs[0]).used]
""",
            enable=False,
        )
        assert seen[0] == [[program.pid] for program in programs]
        assert seen[1] == seen[2]
        assert seen[3:] == [19, 4 << 30]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    gone = "answer = [nvmlDeviceGetMemoryInfo(nvmlDeviceGetMigDeviceHandleByIndex(h, i)).used for i in range(2)]"
    assert ask(node, gone, enable=False) == [0, 0]


@pytest.mark.parametrize(("model", "slices", "memory"), [("A100-40GB", 7, 8), ("A30", 4, 4)])
def test_no_order_of_making_and_destroying_overcommits_a_card(
    tmp_path: Path, holder: Path, model: str, slices: int, memory: int
) -> None:
    """Random walks over layouts: the reported capacity is what can be created, and no slice is used twice."""
    refused, made = ask(
        Node(tmp_path / "n", model, holder),
        f"""
import random
dice, alive, refused, made = random.Random(5), [], 0, 0
profiles = []
for p in range(NVML_GPU_INSTANCE_PROFILE_COUNT):
    try: profiles.append(nvmlDeviceGetGpuInstanceProfileInfo(h, p))
    except NVMLError: pass
for _ in range(3000):
    if alive and dice.random() < 0.45:
        nvmlGpuInstanceDestroy(alive.pop(dice.randrange(len(alive)))[0])
    else:
        p = dice.choice(profiles)
        left = nvmlDeviceGetGpuInstanceRemainingCapacity(h, p.id)
        try:
            if dice.random() < 0.5: gi = nvmlDeviceCreateGpuInstance(h, p.id)
            else: gi = create(h, p.id, *dice.choice(placements(h, p.id)))
        except NVMLError as e:
            assert e.value == 23, e
            refused += 1
        else:
            assert left > 0, "made where nothing was left"
            assert nvmlDeviceGetGpuInstanceRemainingCapacity(h, p.id) < left
            alive.append((gi, p))
            made += 1
    taken, compute_slices = [], 0
    for gi, p in alive:
        at = nvmlGpuInstanceGetInfo(gi).placement
        taken += range(at.start, at.start + at.size)
        compute_slices += p.sliceCount
    assert len(taken) == len(set(taken)) and all(0 <= s < {memory} for s in taken), taken
    assert compute_slices <= {slices}
    assert sum(p.ofaCount > 0 and p.sliceCount < {slices} for _, p in alive) <= 1, "two instances with media engines"
answer = [refused, made]
""",
    )
    assert refused > 200
    assert made > 200


GPM = """
import ctypes
h = handles()[0]
answer = [nvmlGpmQueryDeviceSupport(h).isSupportedDevice]
nvmlDeviceSetMigMode(h, 1)
gi = nvmlGpuInstanceGetInfo(nvmlDeviceCreateGpuInstance(h, 19)).id
a, b = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()
asked = c_nvmlGpmMetricsGet_t(version=NVML_GPM_METRICS_GET_VERSION, numMetrics=2, sample1=a, sample2=b)
asked.metrics[0].metricId, asked.metrics[1].metricId = NVML_GPM_METRIC_GRAPHICS_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL
def error(call):
    try: call()
    except NVMLError as refused: return refused.value
    return 0
answer.append(error(lambda: nvmlGpmMetricsGet(asked)))
answer.append(error(lambda: nvmlGpmMigSampleGet(h, gi + 1, a)))
answer.append(error(lambda: nvmlGpmMigSampleGet(h, gi, a)))
time.sleep(0.01)
answer.append(error(lambda: nvmlGpmMigSampleGet(h, gi, b)))
answer.append(error(lambda: nvmlGpmMetricsGet(asked)))
answer.append([asked.metrics[0].nvmlReturn, asked.metrics[0].value, asked.metrics[1].nvmlReturn])
answer.append([error(lambda: nvmlGpmSampleFree(s)) for s in (a, b)])
"""


@pytest.mark.parametrize(
    ("card", "expected"),
    [("H100", [1, 2, 2, 0, 0, 0, [0, 0.0, 3], [0, 0]]), ("A100-80GB", [0, 2, 2, 3, 3, 2, [0, 0.0, 0], [0, 0]])],
)
def test_how_long_an_instance_worked_is_told_from_hopper_on(tmp_path: Path, card: str, expected: list[object]) -> None:
    node = Node(tmp_path / "node.state", card, compile_holder())
    assert node.nvml(GPM) == expected
    node.close()
