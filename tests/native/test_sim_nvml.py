"""Tests of the simulated NVML, called by the real nvidia-ml-py in processes of their own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.simnode import Node, compile_holder, simctl, until

GIB = 1 << 30
MIB = 1 << 20
UNSHARE = ("unshare", "-pf", "--mount-proc")

# model: NVML name, memory MiB, SMs x cores, capability, PCI id, power limit W, L2-independent bus width, MIG slices
FIGURES = {
    "V100-32GB": ("Tesla V100-SXM2-32GB", 32768, 80 * 64, [7, 0], 0x1DB5, 300, 4096),
    "P40": ("Tesla P40", 23040, 30 * 128, [6, 1], 0x1B38, 250, 384),
    "T4": ("Tesla T4", 15360, 40 * 64, [7, 5], 0x1EB8, 70, 256),
    "A30": ("NVIDIA A30", 24576, 56 * 64, [8, 0], 0x20B7, 165, 3072),
    "A100-40GB": ("NVIDIA A100-SXM4-40GB", 40960, 108 * 64, [8, 0], 0x20B0, 400, 5120),
    "A100-80GB": ("NVIDIA A100-SXM4-80GB", 81920, 108 * 64, [8, 0], 0x20B2, 400, 5120),
    "H100-80GB": ("NVIDIA H100 80GB HBM3", 81559, 132 * 128, [9, 0], 0x2330, 700, 5120),
    "H200-141GB": ("NVIDIA H200", 143771, 132 * 128, [9, 0], 0x2335, 700, 6144),
    "B200-180GB": ("NVIDIA B200", 183359, 148 * 128, [10, 0], 0x2901, 1000, 7680),
    "GH200-96GB": ("NVIDIA GH200 480GB", 97871, 132 * 128, [9, 0], 0x2342, 900, 6144),
    "GB200-186GB": ("NVIDIA GB200", 189471, 152 * 128, [10, 0], 0x2941, 1200, 8192),
}


@pytest.fixture(scope="module")
def holder() -> Path:
    return compile_holder()


@pytest.fixture
def node(tmp_path: Path, holder: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node.state", "2xA100-40GB,T4", holder)
    yield made
    made.close()


def test_every_model_reports_the_figures_of_the_real_card(tmp_path: Path, holder: Path) -> None:
    node = Node(tmp_path / "n", ",".join(FIGURES), holder)
    answer = node.nvml("""
        answer = []
        for h in handles():
            answer.append([nvmlDeviceGetName(h), nvmlDeviceGetMemoryInfo(h).total >> 20, nvmlDeviceGetNumGpuCores(h),
                           nvmlDeviceGetCudaComputeCapability(h), nvmlDeviceGetPciInfo(h).pciDeviceId >> 16,
                           nvmlDeviceGetPowerManagementDefaultLimit(h) // 1000, nvmlDeviceGetMemoryBusWidth(h)])
    """)
    assert [tuple(a) for a in answer] == list(FIGURES.values())


def test_card_is_found_by_index_uuid_pci_address_and_serial(node: Node) -> None:
    answer = node.nvml("""
        answer = []
        for i, h in enumerate(handles()):
            uuid, pci = nvmlDeviceGetUUID(h), nvmlDeviceGetPciInfo(h).busId
            short = pci[4:]
            others = [nvmlDeviceGetHandleByUUID(uuid), nvmlDeviceGetHandleByUUID(uuid.upper().replace("GPU", "GPU")),
                      nvmlDeviceGetHandleByPciBusId(pci), nvmlDeviceGetHandleByPciBusId(short.lower()),
                      nvmlDeviceGetHandleBySerial(nvmlDeviceGetSerial(h))]
            answer.append([nvmlDeviceGetIndex(o) for o in others] + [nvmlDeviceGetMinorNumber(h)])
    """)
    assert answer == [[i] * 6 for i in range(3)]


def test_card_that_is_not_there_is_not_found(node: Node) -> None:
    answer = node.nvml("""
        answer = []
        for call in (lambda: nvmlDeviceGetHandleByIndex(3), lambda: nvmlDeviceGetHandleByUUID("GPU-x"),
                     lambda: nvmlDeviceGetHandleByPciBusId("0000:FF:00.0"), lambda: nvmlDeviceGetHandleByPciBusId("x"),
                     lambda: nvmlDeviceGetHandleBySerial("1"), lambda: nvmlDeviceGetHandleByUUID("MIG-x")):
            try:
                call()
                answer.append(0)
            except NVMLError as error:
                answer.append(error.value)
    """)
    assert answer == [2, 6, 6, 6, 6, 6]


def test_nothing_is_answered_before_start_and_after_the_last_stop(node: Node) -> None:
    answer = node.nvml("""
        h = handles()[0]
        nvmlInit()
        nvmlShutdown()
        answer = [nvmlDeviceGetCount()]
        nvmlShutdown()
        for call in (nvmlDeviceGetCount, nvmlSystemGetDriverVersion, lambda: nvmlDeviceGetName(h), nvmlShutdown):
            try:
                call()
                answer.append(0)
            except NVMLError as error:
                answer.append(error.value)
        nvmlInit()
        answer.append(nvmlDeviceGetCount())
    """)
    assert answer == [3, 1, 1, 1, 1, 3]


def test_without_a_node_the_driver_is_not_loaded(node: Node, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"no node")
    for state, error in (("", 9), (str(tmp_path / "none"), 9), (str(damaged), 18)):
        program = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=node.environment | {"CALABASH_SIM": state},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(done.stdout) == error, state


def test_memory_adds_up_in_both_versions_and_counts_what_is_held(node: Node) -> None:
    node.hold(0, size=3 * GIB)
    answer = node.nvml("""
        answer = []
        for h in handles()[:2]:
            one, two = nvmlDeviceGetMemoryInfo(h), nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)
            answer.append([one.total, one.used, one.free, two.total, two.reserved, two.used, two.free])
    """)
    for total, used, free, total2, reserved, used2, free2 in answer:
        assert total == total2 == used + free == reserved + used2 + free2
        assert used == used2 + reserved
    context = answer[0][5] - 3 * GIB
    assert 300 * MIB < context < 600 * MIB
    assert answer[1][5] == 0


def test_two_processes_see_each_other_and_the_dead_disappear(node: Node) -> None:
    first, second = node.hold(0, size=GIB), node.hold(0, size=2 * GIB)
    ask = """
        answer = {p.pid: p.usedGpuMemory for p in nvmlDeviceGetComputeRunningProcesses(handles()[0])}
        names = [nvmlSystemGetProcessName(pid) for pid in answer]
        assert all(name.endswith("sim_holder") for name in names), names
    """
    seen = node.nvml(ask)
    assert sorted(seen) == sorted((str(first.pid), str(second.pid)))
    assert seen[str(second.pid)] - seen[str(first.pid)] == GIB
    first.kill()
    assert list(node.nvml(ask)) == [str(second.pid)]
    assert second.end() == 0
    assert node.nvml(ask) == {}


def test_every_version_of_the_process_list_agrees(node: Node) -> None:
    holder = node.hold(2, size=GIB)
    answer = node.nvml("""
        import ctypes
        h, library = handles()[2], ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint(0)
        answer = [library.nvmlDeviceGetComputeRunningProcesses(h, ctypes.byref(count), None), count.value]
        v1 = (ctypes.c_ulonglong * 2)()
        answer += [library.nvmlDeviceGetComputeRunningProcesses(h, ctypes.byref(count), v1), v1[0] & 0xFFFFFFFF, v1[1]]
        for f in (nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3):
            answer += [[(p.pid, p.usedGpuMemory, p.gpuInstanceId) for p in f(h)]]
        answer += [nvmlDeviceGetGraphicsRunningProcesses(h), nvmlDeviceGetMPSComputeRunningProcesses(h)]
    """)
    used = answer[4]
    assert answer == [
        7,
        1,
        0,
        holder.pid,
        used,
        [[holder.pid, used, 0xFFFFFFFF]],
        [[holder.pid, used, 0xFFFFFFFF]],
        [],
        [],
    ]


def _can_unshare() -> bool:
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def test_process_is_listed_by_the_number_its_reader_knows(node: Node) -> None:
    if os.geteuid() != 0 or not _can_unshare():
        pytest.skip("needs root and PID namespaces")
    outside = node.hold(0, size=GIB)
    inside = node.hold(0, size=2 * GIB, prefix=UNSHARE)
    ask = "answer = {p.pid: p.usedGpuMemory for p in nvmlDeviceGetComputeRunningProcesses(handles()[0])}"
    from_here = {int(pid): used for pid, used in node.nvml(ask).items()}
    child = int(Path(f"/proc/{inside.pid}/task/{inside.pid}/children").read_text().split()[0])
    assert set(from_here) == {outside.pid, child}
    assert from_here[child] - from_here[outside.pid] == GIB
    assert node.nvml(ask, prefix=UNSHARE) == {}, "processes of other namespaces must not be seen"


def test_busy_card_shows_it_and_cools_down_afterwards(node: Node) -> None:
    ask = """
        answer = [[nvmlDeviceGetUtilizationRates(h).gpu, nvmlDeviceGetPowerUsage(h) // 1000,
                   nvmlDeviceGetTemperature(h, NVML_TEMPERATURE_GPU), nvmlDeviceGetClockInfo(h, NVML_CLOCK_SM),
                   nvmlDeviceGetPerformanceState(h)] for h in (handles()[0], handles()[2])]
    """
    idle = node.nvml(ask)
    assert idle == [[0, 52, 30, 210, 0], [0, 9, 32, 300, 8]]
    other = node.hold(0, busy_ms=600_000)
    holder = node.hold(2, busy_ms=600_000)
    until(lambda: all(card[0] == 100 for card in node.nvml(ask)), "both cards are busy for a second")
    big, small = node.nvml(ask)
    assert big[1] == 400
    assert small[1] == 70
    assert 35 < big[2] <= 64
    assert 40 < small[2] <= 77
    assert [big[3], small[3]] == [1410, 1590]
    assert small[4] == 0
    processes = node.nvml("answer = {s.pid: s.smUtil for s in nvmlDeviceGetProcessUtilization(handles()[2], 0)}")
    assert processes[str(holder.pid)] >= 90
    for ended in (other, holder):
        assert ended.end() == 0
    until(lambda: all(card[0] == 0 for card in node.nvml(ask)), "both cards are idle again")
    assert node.nvml(ask)[0][1] == 52


def test_two_processes_share_a_busy_card_evenly(node: Node) -> None:
    first, second = node.hold(0, busy_ms=600_000), node.hold(0, busy_ms=600_000)
    ask = """
        try: answer = {s.pid: s.smUtil for s in nvmlDeviceGetProcessUtilization(handles()[0], 0)}
        except NVMLError_NotFound: answer = {}
    """
    until(lambda: sum(node.nvml(ask).values()) >= 95, "the card is busy for a second")
    shares = node.nvml(ask)
    assert abs(shares[str(first.pid)] - 50) <= 8, shares
    assert abs(shares[str(second.pid)] - 50) <= 8, shares


def test_energy_never_runs_backwards_and_grows_faster_under_load(node: Node) -> None:
    ask = "answer = [nvmlDeviceGetTotalEnergyConsumption(h) for h in handles()[:2]]"
    before = node.nvml(ask)
    node.hold(0, busy_ms=600_000)
    until(lambda: node.nvml(ask)[0] - before[0] > 300_000, "the busy card uses energy")
    after = node.nvml(ask)
    assert after[0] - before[0] > 2 * (after[1] - before[1]) > 0


def test_samples_of_load_carry_ascending_time_stamps(node: Node) -> None:
    node.hold(0, busy_ms=300)
    answer = node.nvml("""
        deadline = time.time() + 60
        while True:
            kind, samples = nvmlDeviceGetSamples(handles()[0], NVML_GPU_UTILIZATION_SAMPLES, 0)
            answer = [[s.timeStamp, s.sampleValue.uiVal] for s in samples]
            if sum(v for _, v in answer) >= 1400 or time.time() > deadline: break
    """)
    stamps = [stamp for stamp, _ in answer]
    assert stamps == sorted(set(stamps))
    assert max(value for _, value in answer) == 100
    assert sum(value for _, value in answer) >= 1400  # 300 ms in ticks of 20 ms are 1500


def test_every_process_sees_an_injected_xid_and_memory_error(node: Node) -> None:
    program = """
        events = nvmlEventSetCreate()
        for h in handles():
            nvmlDeviceRegisterEvents(h, nvmlDeviceGetSupportedEventTypes(h), events)
        open(os.environ["READY"] + str(os.getpid()), "w").close()
        answer = []
        while len(answer) < 4:
            e = nvmlEventSetWait_v2(events, 10000)
            answer.append([nvmlDeviceGetIndex(e.device), e.eventType, e.eventData])
        try: nvmlEventSetWait_v2(events, 30)
        except NVMLError as error: answer.append(error.value)
        nvmlEventSetFree(events)
    """
    ready = node.state.parent / "ready"
    ready.mkdir()
    os.environ["READY"] = f"{ready}/"
    from concurrent.futures import ThreadPoolExecutor

    node.inject(0, "xid", 13)  # before anybody listens: not reported
    with ThreadPoolExecutor(2) as pool:
        listeners = [pool.submit(node.nvml, program) for _ in range(2)]
        until(lambda: len(list(ready.iterdir())) == 2, "two listeners registered")
        node.inject(1, "xid", 31)
        node.inject(0, "ecc-double")
        node.inject(2, "ecc-single")
        answers = [listener.result() for listener in listeners]
    for answer in answers:
        assert answer.pop() == 10  # NVML_ERROR_TIMEOUT: nothing more
        assert sorted(answer) == [[0, 2, 0], [0, 8, 48], [1, 8, 31], [2, 1, 0]]


def test_memory_errors_are_counted_where_they_happened(node: Node) -> None:
    node.inject(0, "ecc-double")
    node.inject(0, "ecc-single")
    node.inject(0, "ecc-single")
    answer = node.nvml("""
        answer = []
        for h in handles()[:2]:
            for kind in (NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED):
                answer.append([nvmlDeviceGetTotalEccErrors(h, kind, counter)
                               for counter in (NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC)])
            answer.append(nvmlDeviceGetMemoryErrorCounter(h, 1, NVML_VOLATILE_ECC, NVML_MEMORY_LOCATION_REGISTER_FILE))
            answer.append(nvmlDeviceGetEccMode(h))
    """)
    assert answer == [[2, 2], [1, 1], 0, [1, 1], [0, 0], [0, 0], 0, [1, 1]]


def test_lost_card_says_so_and_its_neighbour_works_on(node: Node) -> None:
    node.inject(1, "lost")
    ask = """
        answer = []
        for h in handles():
            try: answer.append(nvmlDeviceGetMemoryInfo(h).total >> 20)
            except NVMLError as error: answer.append(str(error))
        answer.append(nvmlDeviceGetUUID(handles()[1])[:4])
    """
    assert node.nvml(ask) == [40960, "GPU is lost", 15360, "GPU-"]
    node.inject(1, "recover")
    assert node.nvml(ask) == [40960, 40960, 15360, "GPU-"]


def test_injected_heat_throttling_and_row_remapping_show(node: Node) -> None:
    node.inject(0, "temperature", 91)
    node.inject(0, "throttle", "thermal")
    node.inject(0, "row-remap", 2)
    answer = node.nvml("""
        h, t4 = handles()[0], handles()[2]
        answer = [nvmlDeviceGetTemperature(h, 0), nvmlDeviceGetCurrentClocksEventReasons(h),
                  nvmlDeviceGetRemappedRows(h), nvmlDeviceGetCurrentClocksEventReasons(t4)]
        try: nvmlDeviceGetRemappedRows(t4)
        except NVMLError as error: answer.append(error.value)
    """)
    assert answer == [91, 0x40, [0, 0, 1, 0], 1, 3]


def test_modes_are_the_nodes_and_not_the_processs(node: Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    node.nvml("""
        h = handles()[0]
        nvmlDeviceSetComputeMode(h, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        nvmlDeviceSetPowerManagementLimit(h, 250000)
        nvmlDeviceSetPersistenceMode(h, 0)
        answer = 0
    """)
    answer = node.nvml("""
        answer = [[nvmlDeviceGetComputeMode(h), nvmlDeviceGetPowerManagementLimit(h), nvmlDeviceGetPersistenceMode(h)]
                  for h in handles()[:2]]
    """)
    assert answer == [[3, 250000, 0], [0, 400000, 1]]


@pytest.mark.parametrize(
    ("gpus", "links", "kind"), [("2xA100-40GB", 12, 0), ("4xA100-40GB", 12, 0), ("8xH100", 18, 2), ("1xH100", 0, None)]
)
def test_links_lead_to_every_peer(tmp_path: Path, holder: Path, gpus: str, links: int, kind: int | None) -> None:
    node = Node(tmp_path / "n", gpus, holder)
    answer = node.nvml("""
        answer = []
        for h in handles():
            active = [link for link in range(18) if link < 12 or nvmlDeviceGetNumGpuCores(h) != 6912]
            active = [link for link in active if nvmlDeviceGetNvLinkState(h, link)]
            far = [nvmlDeviceGetNvLinkRemotePciInfo(h, link).busId for link in active]
            kinds = [nvmlDeviceGetNvLinkRemoteDeviceType(h, link) for link in active]
            answer.append([len(active), sorted(set(kinds)), len(set(far))])
    """)
    count = len(answer)
    assert [a[0] for a in answer] == [links] * count
    assert all(a[1] == ([] if kind is None else [kind]) for a in answer)
    if kind == 0:
        assert [a[2] for a in answer] == [count - 1] * count


def test_topology_is_symmetric_and_knows_nodes_and_links(tmp_path: Path, holder: Path) -> None:
    node = Node(tmp_path / "n", "2xA100-40GB,2xT4", holder)
    answer = node.nvml("""
        hs = handles()
        answer = [[[int(nvmlDeviceGetTopologyCommonAncestor(a, b)),
                    nvmlDeviceGetP2PStatus(a, b, NVML_P2P_CAPS_INDEX_NVLINK) == 0 if a is not b else None]
                   for b in hs] for a in hs]
    """)
    for i in range(4):
        assert answer[i][i] == [0, None]
        assert [answer[i][k] for k in range(4)] == [answer[k][i] for k in range(4)]
    assert answer[0][1] == [20, True]
    assert answer[0][2] == [50, False]
    assert answer[2][3] == [20, False]


def test_processor_and_memory_affinity_cover_the_machine_without_overlap(tmp_path: Path, holder: Path) -> None:
    node = Node(tmp_path / "n", "2xT4", holder)
    answer = node.nvml("""
        answer = [[nvmlDeviceGetCpuAffinity(h, 16)[:], nvmlDeviceGetMemoryAffinity(h, 1, 0)[0]] for h in handles()]
    """)
    masks = [sum(word << (64 * i) for i, word in enumerate(cpus)) for cpus, _ in answer]
    assert [memory for _, memory in answer] == [1, 2]
    online = os.sysconf("SC_NPROCESSORS_ONLN")
    if online >= 2:
        assert masks[0] & masks[1] == 0
    assert (masks[0] | masks[1]).bit_count() == online


def test_cards_beside_grace_cpus_have_places_and_memory_nodes_of_their_own(tmp_path: Path, holder: Path) -> None:
    node = Node(tmp_path / "n", "2xGH200,3xGB200,T4", holder)
    answer = node.nvml("""
        import ctypes
        def optional(call, h):
            try: return call(h)
            except NVMLError_NotSupported: return None
        def addressing(h):
            mode = c_nvmlDeviceAddressingMode_t()
            mode.version = nvmlDeviceAddressingMode_v1
            assert nvmlDeviceGetAddressingMode.__globals__["_nvmlGetFunctionPointer"](
                "nvmlDeviceGetAddressingMode")(h, ctypes.byref(mode)) == 0
            return mode.value
        def linked(h):
            return nvmlDeviceGetC2cModeInfoV1(h).isC2cEnabled
        answer = [[nvmlDeviceGetPciInfo(h).busId, nvmlDeviceGetMemoryAffinity(h, 1, 0)[0],
                   optional(nvmlDeviceGetNumaNodeId, h), addressing(h), optional(linked, h)] for h in handles()]
    """)
    assert answer == [
        ["00000009:01:00.0", 1 << 0, 4, 2, 1],
        ["00000019:01:00.0", 1 << 1, 12, 2, 1],
        ["00000028:01:00.0", 1 << 2, 20, 2, 1],
        ["00000029:01:00.0", 1 << 2, 28, 2, 1],
        ["00000038:01:00.0", 1 << 3, 36, 2, 1],
        ["00000000:4D:00.0", 1 << 1, None, 0, None],
    ]


def test_field_values_answer_by_number_and_admit_what_they_do_not_know(node: Node) -> None:
    node.inject(0, "ecc-double")
    answer = node.nvml("""
        ids = [NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_POWER_INSTANT,
               NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_PERF_POLICY_POWER]
        answer = [[[v.nvmlReturn, v.value.ullVal if v.nvmlReturn == 0 else None]
                   for v in nvmlDeviceGetFieldValues(h, ids)] for h in (handles()[0], handles()[2])]
    """)
    assert answer[0] == [[0, 1], [0, 12], [0, 52000], [0, 35], [3, None]]
    assert answer[1] == [[0, 0], [0, 0], [0, 9000], [3, None], [3, None]]


def test_what_is_not_served_says_so_and_is_listed(node: Node) -> None:
    answer = node.nvml("""
        try:
            nvmlDeviceGetEncoderCapacity(handles()[0], 0)
            answer = 0
        except NVMLError as error:
            answer = error.value
    """)
    assert answer == 3
    assert [u["name"] for u in node.show()["unserved"]] == ["nvmlDeviceGetEncoderCapacity"]
    assert "nvmlDeviceGetEncoderCapacity" in simctl("unserved", node.state).stdout


def test_every_getter_of_pynvml_answers_or_refuses_but_never_crashes(node: Node) -> None:
    """Call all functions that need only a device handle, with a card, a foreign pointer and no handle."""
    answer = node.nvml("""
        import ctypes, inspect, pynvml
        foreign = ctypes.c_void_p(ctypes.addressof(ctypes.create_string_buffer(64)))
        answer = {}
        for name, f in sorted(vars(pynvml).items()):
            if not name.startswith("nvmlDeviceGet") or not callable(f) or name.endswith("Handle"): continue
            try:
                if len(inspect.signature(f).parameters) != 1: continue
            except ValueError: continue
            for at, h in (("card", handles()[0]), ("foreign", foreign), ("none", None)):
                try: f(h)
                except NVMLError as error: outcome = error.value
                except Exception: continue
                else: outcome = 0
                answer.setdefault(at, {})[name] = outcome
    """)
    served = [name for name, outcome in answer["card"].items() if outcome == 0]
    assert len(served) >= 60, served
    assert set(answer["card"].values()) <= {0, 2, 3, 6, 7, 13, 25}
    assert 0 not in answer["foreign"].values()
    assert 0 not in answer["none"].values()


def test_kills_at_any_moment_leave_nothing_held(node: Node, holder: Path) -> None:
    """Processes die while they attach, charge, post or leave; readers query all the while; all counters end at zero."""
    dice, alive, programs = random.Random(11), [], 0
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH], env=node.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for _ in range(200):
        alive.append(
            subprocess.Popen(
                [holder, str(dice.randrange(3)), str(dice.choice((0, 512, GIB))), "5"],
                env=node.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )
        )
        programs += 1
        if len(alive) == 8:
            victim = alive.pop(dice.randrange(8))
            time.sleep(dice.random() * 0.004)  # let it be at different points when it dies
            victim.kill()
            victim.wait()
    for program in alive:
        program.kill()
        program.wait()
    out, _ = watcher.communicate("")
    queries, odd = (int(word) for word in out.split())
    assert queries > 20
    assert odd == 0
    shown = node.show()
    assert shown["processes"] == []
    assert [(d["used_bytes"], d["alloc_bytes"]) for d in shown["devices"]] == [(0, 0)] * 3
    assert programs == 200


WATCH = """
import select, sys
from pynvml import *
nvmlInit()
handles = [nvmlDeviceGetHandleByIndex(i) for i in range(3)]
looks = odd = 0
while not select.select([sys.stdin], [], [], 0.001)[0]:
    for h in handles:
        memory = nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)
        listed = sum(p.usedGpuMemory for p in nvmlDeviceGetComputeRunningProcesses(h))
        odd += memory.used + memory.free + memory.reserved != memory.total or listed > memory.total
    looks += 1
print(looks, odd)
"""
