"""Contract of GPU drivers, checked on a simulated node, on real cards if there are some, and on a vendor of the tests."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path

import pynvml
import pytest
from bench._lab import Lab
from tests.contract.orchid import open_orchid

from calabash.adapters.gpu import sim, vendors
from calabash.adapters.gpu.deadline import DeadlineThread
from calabash.adapters.gpu.library import OWN_FILES, DriverFiles, simulated_library_dir
from calabash.adapters.gpu.nvidia import reset as nvidia_reset
from calabash.adapters.gpu.protocol import DeviceEvent, DriverOptions, EventKind, GpuDriver
from calabash.model.device import ComputeMode, Device, DeviceProcess, DeviceReading, DeviceUuid, Health, Slowdown
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.inventory import Inventory

DEADLINE_S = 60.0
ALLOCATE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context, address = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass
class Bench:
    """A driver under test; ``node`` is set if faults can be injected."""

    name: str
    driver: GpuDriver
    node: sim.NodeFile | None = None
    environment: dict[str, str] = field(default_factory=dict)


def _real_driver() -> GpuDriver:
    """Open the driver of real cards; skip the test without any, or if NVML in this process is the simulated one."""
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidia0").exists():
        pytest.skip("no real NVIDIA card on this machine")
    if any("simgpu" in line for line in Path("/proc/self/maps").read_text().splitlines()):
        pytest.skip("the simulated driver is loaded in this process; run this test alone: -k real")
    return vendors.open_driver("nvidia")


@pytest.fixture(params=["simulated", "real", "orchid"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "simulated":
        node = sim.create_node(tmp_path, "lab", "2xA100-40GB,T4", seed=1)
        driver = vendors.open_driver("nvidia", DriverOptions(sim_state=node.state))
        made = Bench(name="simulated", driver=driver, node=node, environment=sim.environment(node))
    elif request.param == "real":
        made = Bench(name="real", driver=_real_driver())
    else:
        made = Bench(name="orchid", driver=vendors.open_driver("orchid", extra={"orchid": open_orchid}))
    yield made
    made.driver.close()


@pytest.fixture
def drivers() -> Iterator[ExitStack]:
    """Yield a stack that closes what a test opens, also if it fails: the process has one node at a time."""
    with ExitStack() as stack:
        yield stack


def _lab(bench: Bench) -> sim.NodeFile:
    if bench.node is None:
        pytest.skip(f"faults cannot be caused on {bench.name} cards")
    return bench.node


def test_a_driver_is_what_the_protocol_says(bench: Bench) -> None:
    assert isinstance(bench.driver, GpuDriver)
    assert bench.driver.vendor in vendors.vendor_names({"orchid": open_orchid})
    assert bench.driver.driver_version() != ""


def test_cards_are_listed_once_in_order_and_complete(bench: Bench) -> None:
    devices = bench.driver.devices()
    assert devices, "no cards"
    assert [d.index for d in devices] == list(range(len(devices)))
    assert len({d.uuid for d in devices}) == len(devices)
    for device in devices:
        assert device.vendor == bench.driver.vendor
        assert device.memory_mib > 1024
        assert device.model
        assert device.health is Health.HEALTHY
        assert device.uuid not in device.nvlink_peers
        for peer in device.nvlink_peers:
            assert device.uuid in next(d for d in devices if d.uuid == peer).nvlink_peers
    assert bench.driver.devices() == devices


def test_a_reading_stays_within_what_the_card_has(bench: Bench) -> None:
    for device in bench.driver.devices():
        reading = bench.driver.read(device.uuid)
        assert reading.uuid == device.uuid
        assert 0 <= reading.memory_used_mib <= device.memory_mib
        assert 0 <= reading.utilization_percent <= 100
        assert 0 < reading.temperature_c < 120
        assert reading.power_w >= 0
        assert reading.processes == bench.driver.processes(device.uuid)


def test_card_that_is_not_there_is_not_found(bench: Bench) -> None:
    for ask in (bench.driver.read, bench.driver.processes):
        with pytest.raises(CalabashError) as caught:
            ask(DeviceUuid("GPU-00000000-0000-0000-0000-000000000000"))
        assert caught.value.reason is Reason.NOT_FOUND


def test_waiting_for_events_ends_in_time_with_none(bench: Bench) -> None:
    before = time.monotonic()
    assert bench.driver.wait_events(0.05) == ()
    assert time.monotonic() - before < DEADLINE_S


def test_driver_answers_after_a_temporary_release(bench: Bench) -> None:
    devices = bench.driver.devices()
    answers: list[DeviceReading] = []
    asking = threading.Thread(target=lambda: answers.append(bench.driver.read(devices[0].uuid)))
    with bench.driver.released():
        asking.start()
    asking.join(60)
    assert [answer.uuid for answer in answers] == [devices[0].uuid]
    assert bench.driver.devices() == devices
    assert bench.driver.wait_events(0.05) == ()


def test_a_closed_driver_says_so_and_can_be_closed_again(bench: Bench) -> None:
    bench.driver.close()
    bench.driver.close()
    with pytest.raises(CalabashError):
        bench.driver.devices()


def test_many_threads_may_ask_at_once(bench: Bench) -> None:
    expected = bench.driver.devices()
    answers: list[tuple[Device, ...]] = []
    threads = [threading.Thread(target=lambda: answers.append(bench.driver.devices())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert answers == [expected] * 16


def test_a_program_is_seen_with_its_memory_and_gone_when_it_dies(bench: Bench) -> None:
    import os

    _lab(bench)
    uuid = bench.driver.devices()[0].uuid
    program = subprocess.Popen(
        [sys.executable, "-c", ALLOCATE],
        env=os.environ | bench.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    (process,) = bench.driver.processes(uuid)
    assert process.pid == program.pid
    assert 1024 < process.used_mib < 2048
    assert bench.driver.read(uuid).memory_used_mib == process.used_mib
    program.kill()
    program.wait()
    deadline = time.monotonic() + DEADLINE_S
    while bench.driver.processes(uuid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bench.driver.processes(uuid) == ()
    assert bench.driver.read(uuid).memory_used_mib == 0


def test_faults_arrive_as_events_of_their_card(bench: Bench) -> None:
    node = _lab(bench)
    first, second, third = (d.uuid for d in bench.driver.devices())
    assert bench.driver.wait_events(0.01) == ()  # only later events
    sim.inject(node, "0", "xid", "31")
    sim.inject(node, "1", "ecc-double")
    sim.inject(node, "2", "lost")
    seen: set[DeviceEvent] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(seen) < 4 and time.monotonic() < deadline:
        seen |= set(bench.driver.wait_events(1.0))
    assert seen == {
        DeviceEvent(uuid=first, kind=EventKind.XID, code=31),
        DeviceEvent(uuid=second, kind=EventKind.ECC_DOUBLE_BIT),
        DeviceEvent(uuid=second, kind=EventKind.XID, code=48),
        DeviceEvent(uuid=third, kind=EventKind.LOST, code=79),
    }
    assert bench.driver.read(second).ecc_uncorrected == 1


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (("row-remap", "1"), "row_remap_pending", True),
        (("row-remap-failed",), "row_remap_failed", True),
        (("throttle", "thermal"), "throttled", (Slowdown.THERMAL,)),
        (("throttle", "power-brake"), "throttled", (Slowdown.POWER_BRAKE,)),
        (("throttle", "power"), "throttled", (Slowdown.POWER_CAP,)),
        (("nvlink-down", "2"), "nvlinks_up", 10),
    ],
)
def test_fault_of_a_card_is_read_until_it_recovers(
    tmp_path: Path, drivers: ExitStack, words: tuple[str, ...], field: str, value: object
) -> None:
    node = sim.create_node(tmp_path, "lab", "2xA100-40GB")
    driver = drivers.enter_context(closing(vendors.open_driver("nvidia", DriverOptions(sim_state=node.state))))
    first, second = (d.uuid for d in driver.devices())
    healthy = getattr(driver.read(first), field)
    sim.inject(node, "0", *words)
    assert (getattr(driver.read(first), field), getattr(driver.read(second), field)) == (value, healthy)
    sim.inject(node, "0", "recover")
    assert getattr(driver.read(first), field) == healthy


def test_pending_page_retirement_is_read_of_older_cards(tmp_path: Path, drivers: ExitStack) -> None:
    node = sim.create_node(tmp_path, "lab", "1xV100-32GB")
    driver = drivers.enter_context(closing(vendors.open_driver("nvidia", DriverOptions(sim_state=node.state))))
    uuid = driver.devices()[0].uuid
    sim.inject(node, "0", "page-retirement")
    assert driver.read(uuid).retired_pages_pending
    driver.reset(uuid)
    assert not driver.read(uuid).retired_pages_pending


def test_idle_card_is_reset_and_its_counters_start_again(tmp_path: Path, drivers: ExitStack) -> None:
    node = sim.create_node(tmp_path, "lab", "2xA100-40GB,1xT4")
    driver = drivers.enter_context(closing(vendors.open_driver("nvidia", DriverOptions(sim_state=node.state))))
    first, second, third = driver.devices()
    assert (first.reset_peers, third.reset_peers) == ((second.uuid,), ())
    environment = sim.environment(node) | {"CUDA_VISIBLE_DEVICES": second.uuid}
    program = subprocess.Popen(
        [sys.executable, "-c", ALLOCATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    sim.inject(node, "all", "ecc-double")
    for device in (first, second):
        with pytest.raises(CalabashError, match="in use by 1 process") as refused:
            driver.reset(device.uuid)
        assert refused.value.reason is Reason.CONFLICT
    driver.reset(third.uuid)
    assert [driver.read(d.uuid).ecc_uncorrected for d in (first, second, third)] == [1, 1, 0]
    program.communicate()
    driver.reset(first.uuid)
    assert driver.read(first.uuid).ecc_uncorrected == 0
    sim.inject(node, "2", "lost")
    with pytest.raises(CalabashError) as lost:
        driver.reset(third.uuid)
    assert lost.value.reason is Reason.UNHEALTHY


def test_reset_of_a_real_card_releases_the_driver_and_calls_wait(
    tmp_path: Path, drivers: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = sim.create_node(tmp_path, "lab", "2xT4")
    driver = drivers.enter_context(closing(vendors.open_driver("nvidia", DriverOptions(sim_state=node.state))))
    first, second = (d.uuid for d in driver.devices())
    assert driver.wait_events(0.01) == ()
    begun, go_on = threading.Event(), threading.Event()
    answers: list[DeviceReading] = []

    def reset(uuids: list[str], files: DriverFiles) -> None:
        assert (uuids, files) == ([first], OWN_FILES)
        with pytest.raises(pynvml.NVMLError):
            pynvml.nvmlDeviceGetCount()  # no process has it open
        begun.set()
        assert go_on.wait(DEADLINE_S)

    monkeypatch.setattr(nvidia_reset, "reset_real", reset)
    monkeypatch.setattr(driver, "_simulated", None)
    resetting = threading.Thread(target=driver.reset, args=(first,))
    resetting.start()
    assert begun.wait(DEADLINE_S)
    reading = threading.Thread(target=lambda: answers.append(driver.read(second)))
    reading.start()
    reading.join(0.1)  # a reader that the reset does not block has answered by now, or later if it is slow
    assert answers == []
    go_on.set()
    for thread in (resetting, reading):
        thread.join(DEADLINE_S)
    assert [answer.uuid for answer in answers] == [second]
    assert driver.wait_events(0.01) == ()  # only later events
    sim.inject(node, "1", "xid", "31")
    assert driver.wait_events(DEADLINE_S) == (DeviceEvent(uuid=second, kind=EventKind.XID, code=31),)


def test_a_lost_card_keeps_its_place_and_refuses_to_be_read(bench: Bench) -> None:
    node = _lab(bench)
    before = bench.driver.devices()
    sim.inject(node, "1", "lost")
    after = bench.driver.devices()
    assert [d.health for d in after] == [Health.HEALTHY, Health.LOST, Health.HEALTHY]
    assert [(d.uuid, d.memory_mib) for d in after] == [(d.uuid, d.memory_mib) for d in before]
    with pytest.raises(CalabashError) as caught:
        bench.driver.read(before[1].uuid)
    assert caught.value.reason is Reason.UNHEALTHY
    assert "lost" in caught.value.message
    sim.inject(node, "1", "recover")
    assert bench.driver.devices() == before


def test_a_card_that_hangs_costs_one_call_its_deadline_and_recovers(tmp_path: Path, drivers: ExitStack) -> None:
    node = sim.create_node(tmp_path, "lab", "2xT4")
    driver = drivers.enter_context(
        closing(vendors.open_driver("nvidia", DriverOptions(sim_state=node.state, call_timeout_s=1.5)))
    )
    first, second = (d.uuid for d in driver.devices())
    sim.inject(node, "0", "hang", "600")
    for expected in ("got no answer", "was not tried"):
        before = time.monotonic()
        with pytest.raises(CalabashError) as caught:
            driver.read(first)
        assert caught.value.reason is Reason.TIMEOUT
        assert expected in caught.value.message
        assert time.monotonic() - before < DEADLINE_S  # and not the ten minutes of the card
        assert driver.read(second).uuid == second  # the other card is still served
    sim.inject(node, "0", "recover")
    deadline = time.monotonic() + DEADLINE_S
    while not _answers(driver, first) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert driver.read(first).uuid == first
    assert driver.read(second).uuid == second


def _answers(driver: GpuDriver, uuid: DeviceUuid) -> bool:
    try:
        return driver.read(uuid).uuid == uuid
    except CalabashError:
        return False


def test_compute_mode_is_set_and_read(bench: Bench) -> None:
    import os

    node = _lab(bench)
    if os.geteuid() != 0:
        pytest.skip("needs root, as on a real card")
    uuid = bench.driver.devices()[0].uuid
    for number, mode in ((3, ComputeMode.EXCLUSIVE_PROCESS), (2, ComputeMode.PROHIBITED), (0, ComputeMode.DEFAULT)):
        bench.driver.set_compute_mode(uuid, mode)
        assert f'"compute_mode":{number}' in _show(node)
        assert bench.driver.compute_mode(uuid) is mode


def _show(node: sim.NodeFile) -> str:
    tool = simulated_library_dir() / "calabash-simctl"
    return subprocess.run([tool, "show", node.state, "--json"], capture_output=True, text=True, check=True).stdout


def test_one_process_has_one_node_at_a_time(tmp_path: Path, drivers: ExitStack) -> None:
    first, second = (sim.create_node(tmp_path, name, "T4") for name in ("one", "two"))
    driver, again = (
        drivers.enter_context(closing(vendors.open_driver("nvidia", DriverOptions(sim_state=first.state))))
        for _ in range(2)
    )
    with pytest.raises(CalabashError) as caught:
        vendors.open_driver("nvidia", DriverOptions(sim_state=second.state))
    assert caught.value.reason is Reason.CONFLICT
    before = driver.devices()
    again.close()
    assert driver.devices() == before
    driver.close()
    other = drivers.enter_context(closing(vendors.open_driver("nvidia", DriverOptions(sim_state=second.state))))
    assert other.devices()[0].uuid != before[0].uuid


def test_missing_or_damaged_node_is_refused_with_a_reason(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"x" * 100)
    for state, reason in ((tmp_path / "none", Reason.NOT_FOUND), (damaged, Reason.BAD_FILE)):
        with pytest.raises(CalabashError) as caught:
            vendors.open_driver("nvidia", DriverOptions(sim_state=state))
        assert caught.value.reason is reason


def test_missing_driver_is_refused_with_a_hint() -> None:
    """Use a process of its own, in which no simulated library is loaded."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a driver")
    program = """
from calabash.adapters.gpu import vendors
from calabash.model.errors import CalabashError
try: vendors.open_driver("nvidia")
except CalabashError as error: print(error.reason, "sim create" in error.hint)
print(vendors.open_present())
"""
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["no_devices True", "()"]


def test_a_call_that_hangs_is_given_up_and_the_next_ones_fail_at_once() -> None:
    thread = DeadlineThread("test")
    release = threading.Event()
    with pytest.raises(CalabashError) as caught:
        thread.ask(lambda: release.wait(2 * DEADLINE_S), what="reading GPU-1", timeout_s=0.05)
    assert caught.value.reason is Reason.TIMEOUT
    assert "reading GPU-1 got no answer" in caught.value.message
    before = time.monotonic()
    with pytest.raises(CalabashError) as caught:
        thread.ask(lambda: 1, what="reading GPU-2", timeout_s=2 * DEADLINE_S)
    assert time.monotonic() - before < DEADLINE_S
    assert "was not tried" in caught.value.message
    release.set()
    deadline = time.monotonic() + DEADLINE_S
    answer = 0
    while answer != 7 and time.monotonic() < deadline:
        try:
            answer = thread.ask(lambda: 7, what="reading", timeout_s=DEADLINE_S)
        except CalabashError:
            time.sleep(0.01)
    assert answer == 7
    thread.close()


def test_error_in_a_call_is_raised_unchanged_in_the_caller() -> None:
    thread = DeadlineThread("test")
    with pytest.raises(ZeroDivisionError):
        thread.ask(lambda: 1 // 0, what="dividing", timeout_s=DEADLINE_S)
    assert thread.ask(lambda: 2, what="going on", timeout_s=DEADLINE_S) == 2
    thread.close()


def test_a_vendor_comes_from_the_caller_or_from_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = EntryPoint(name="lily", group=vendors.ENTRY_POINT_GROUP, value="tests.contract.orchid:open_orchid")

    def points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [p for p in (installed,) if p.group == group and name in (None, p.name)]

    monkeypatch.setattr(vendors, "entry_points", points)
    assert vendors.vendor_names({"orchid": open_orchid}) == ("lily", "nvidia", "orchid")
    for name in ("lily", "orchid"):
        driver = vendors.open_driver(name, extra={"orchid": open_orchid})
        assert driver.devices()[0].model == "Orchid O1"
        driver.close()
    with pytest.raises(CalabashError) as caught:
        vendors.open_driver("rose")
    assert caught.value.reason is Reason.NOT_FOUND
    assert "lily, nvidia" in caught.value.hint


def test_all_vendors_that_are_present_are_opened_together(tmp_path: Path) -> None:
    node = sim.create_node(tmp_path, "lab", "T4")
    drivers = vendors.open_present(DriverOptions(sim_state=node.state), {"orchid": open_orchid})
    assert sorted(d.vendor for d in drivers) == ["nvidia", "orchid"]
    found = [device for driver in drivers for device in driver.devices()]
    assert {device.vendor for device in found} == {"nvidia", "orchid"}
    reading = drivers[-1].read(found[-1].uuid)
    assert isinstance(reading, DeviceReading)
    assert all(isinstance(p, DeviceProcess) for p in reading.processes)
    for driver in drivers:
        driver.close()


def test_a_new_vendors_cards_join_the_nodes_inventory_untouched(tmp_path: Path, drivers: ExitStack) -> None:
    node = sim.create_node(tmp_path, "lab", "2xT4")
    opened = vendors.open_present(DriverOptions(sim_state=node.state), {"orchid": open_orchid})
    for driver in opened:
        drivers.enter_context(closing(driver))
    inventory = Inventory(opened)
    devices = inventory.devices()
    assert [d.index for d in devices] == [0, 1, 2]
    assert sorted(d.vendor for d in devices) == ["nvidia", "nvidia", "orchid"]
    assert all(d.health is Health.HEALTHY for d in devices)
    orchid = next(d for d in devices if d.vendor == "orchid")
    reading = inventory.reading(orchid.uuid)
    assert reading is not None
    assert reading.temperature_c == 40


def test_idle_cards_report_no_utilization(bench: Bench) -> None:
    for device in bench.driver.devices():
        assert all(0 <= sample.percent <= 100 for sample in bench.driver.utilization(device.uuid, 0))
    with pytest.raises(CalabashError) as raised:
        bench.driver.utilization(DeviceUuid("GPU-00000000-0000-0000-0000-000000000000"), 0)
    assert raised.value.reason is Reason.NOT_FOUND


def test_a_program_that_works_is_seen_working_until_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CARD", "sim")
    with Lab(arbiter=False) as lab:
        assert lab.node is not None
        driver = vendors.open_driver("nvidia", DriverOptions(sim_state=lab.node.state))
        try:
            tenant = lab.load(None, "--kernel-us", 1000, "--seconds", 30)
            found, deadline = driver.utilization(lab.uuid, 0), time.monotonic() + DEADLINE_S
            while (not found or found[0].percent < 60) and time.monotonic() < deadline:
                time.sleep(0.1)
                found = driver.utilization(lab.uuid, 0)
            (sample,) = found
            assert (sample.pid, sample.percent > 50) == (tenant.pid, True)
            assert abs(sample.at_us / 1e6 - time.time()) < 5
            assert driver.utilization(lab.uuid, sample.at_us + 60_000_000) == ()
        finally:
            driver.close()
