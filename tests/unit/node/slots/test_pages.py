"""Shared pages of slots: the Python structures have the layout of the C header, and pages are read and written safely."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, ComputePolicy
from calabash.node.slots import layout
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot
from calabash.node.slots.layout import Gate, PagePolicy
from calabash.node.slots.names import LEASE_FILE, LIMITS_FILE, USAGE_FILE
from calabash.node.slots.pages import LimitsPage, TurnPlan, UsagePage

ROOT = Path(__file__).resolve().parents[4]
STRUCTURES = {
    "cb_plan": layout.PlanStruct,
    "cb_limits_device": layout.LimitsDeviceStruct,
    "cb_limits": layout.LimitsStruct,
    "cb_usage_device": layout.UsageDeviceStruct,
    "cb_usage_share": layout.UsageShareStruct,
    "cb_usage_proc": layout.UsageProcStruct,
    "cb_usage_kernel": layout.UsageKernelStruct,
    "cb_usage": layout.UsageStruct,
}
CONSTANTS = {
    "CB_LIMITS_MAGIC": layout.LIMITS_MAGIC,
    "CB_USAGE_MAGIC": layout.USAGE_MAGIC,
    "CB_PAGE_VERSION": layout.PAGE_VERSION,
    "CB_PAGE_PLAIN": layout.PAGE_PLAIN,
    "CB_LIMITS_LEASELESS": layout.LIMITS_LEASELESS,
    "CB_DEVICES_MAX": layout.DEVICES_MAX,
    "CB_PROCS_MAX": layout.PROCS_MAX,
    "CB_KERNELS_MAX": layout.KERNELS_MAX,
    "CB_POLICY_NONE": PagePolicy.NONE,
    "CB_POLICY_FIXED": PagePolicy.FIXED,
    "CB_POLICY_BURST": PagePolicy.BURST,
    "CB_POLICY_BEST_EFFORT": PagePolicy.BEST_EFFORT,
    "CB_GATE_OPEN": Gate.OPEN,
    "CB_GATE_RATE": Gate.RATE,
    "CB_GATE_TURN": Gate.TURN,
    "CB_PROC_FREE": layout.ProcState.FREE,
    "CB_PROC_TAKEN": layout.ProcState.TAKEN,
    "CB_PROC_LIVE": layout.ProcState.LIVE,
}


def _spec(**changes: object) -> SlotSpec:
    device = SlotDevice(
        uuid=DeviceUuid("GPU-0"), memory_limit_bytes=8 << 30, core_percent=30, policy=ComputePolicy.BURST, priority=-1
    )
    fields: dict[str, object] = {"allocation": AllocationId("a-1"), "devices": (device,)}
    return SlotSpec(**(fields | changes))  # type: ignore[arg-type]


def test_fields_have_the_offsets_and_sizes_of_the_header(tmp_path: Path) -> None:
    lines = []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field in structure._fields_:
            lines.append(f'printf("{name}.{field[0]} %zu\\n", offsetof(struct {name}, {field[0]}));')
            lines.append(f'printf("{name}.{field[0]}# %zu\\n", sizeof(((struct {name} *)0)->{field[0]}));')
    lines.extend(f'printf("{name} %llu\\n", (unsigned long long){name});' for name in CONSTANTS)
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include "page/page.h"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0; }\n"
    )
    program = tmp_path / "layout"
    subprocess.run(["gcc", "-std=gnu11", f"-I{ROOT / 'native'}", str(source), "-o", str(program)], check=True)
    printed = dict(line.split() for line in subprocess.check_output([program], text=True).splitlines())
    expected: dict[str, int] = {name: int(value) for name, value in CONSTANTS.items()}
    for name, structure in STRUCTURES.items():
        expected[name] = ctypes.sizeof(structure)
        for field in structure._fields_:
            descriptor = getattr(structure, field[0])
            expected[f"{name}.{field[0]}"] = descriptor.offset
            expected[f"{name}.{field[0]}#"] = descriptor.size
    assert {name: int(value) for name, value in printed.items()} == expected


def test_structures_cover_every_byte_of_the_header() -> None:
    for structure in STRUCTURES.values():
        covered = sum(getattr(structure, field[0]).size for field in structure._fields_)
        assert covered == ctypes.sizeof(structure), f"{structure.__name__} has a hole"


def test_new_slot_is_complete_and_its_limits_are_writable_by_the_owner_only(tmp_path: Path) -> None:
    slot = tmp_path / "alloc" / "a-1"
    create_slot(slot, _spec())
    assert sorted(path.name for path in slot.iterdir()) == [LEASE_FILE, LIMITS_FILE, USAGE_FILE]
    assert (slot / LIMITS_FILE).stat().st_mode & 0o777 == 0o644
    assert (slot / USAGE_FILE).stat().st_mode & 0o777 == 0o666
    limits = LimitsPage.of_slot(slot)
    assert (limits.allocation, limits.uuids) == ("a-1", ("GPU-0",))
    device = limits.device(0)
    assert (device.memory_limit_bytes, device.core_percent, device.priority) == (8 << 30, 30, -1)
    assert (device.policy, device.gate) == (PagePolicy.BURST, Gate.RATE)
    assert UsagePage.of_slot(slot).procs() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_usage_page_belongs_to_a_known_tenant(tmp_path: Path) -> None:
    create_slot(tmp_path / "s", _spec(tenant_uid=4321))
    status = (tmp_path / "s" / USAGE_FILE).stat()
    assert (status.st_uid, status.st_mode & 0o777) == (4321, 0o600)
    assert (tmp_path / "s" / LIMITS_FILE).stat().st_uid == os.geteuid()


def test_gate_of_a_whole_card_without_compute_limit_is_open(tmp_path: Path) -> None:
    create_slot(tmp_path / "s", _spec(devices=(SlotDevice(uuid=DeviceUuid("GPU-0")),)))
    assert LimitsPage.of_slot(tmp_path / "s").device(0).gate == Gate.OPEN


def test_failed_creation_of_a_slot_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(CalabashError, match="49 bytes"):
        create_slot(tmp_path / "s", _spec(devices=(SlotDevice(uuid=DeviceUuid("G" * 49)),)))
    assert not (tmp_path / "s" / LIMITS_FILE).exists()
    with pytest.raises(CalabashError) as caught:
        create_slot(Path("/dev/full/slot"), _spec())
    assert caught.value.reason is Reason.HOST_FAILED


@pytest.mark.parametrize("damage", ["short", "magic", "count", "link"])
def test_damaged_limits_file_is_refused(tmp_path: Path, damage: str) -> None:
    create_slot(tmp_path, _spec())
    path = tmp_path / LIMITS_FILE
    content = bytearray(path.read_bytes())
    if damage == "short":
        path.write_bytes(content[:-1])
    elif damage == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        content[0 if damage == "magic" else 12] ^= 0xFF
        path.write_bytes(content)
    with pytest.raises(CalabashError) as caught:
        LimitsPage.of_slot(tmp_path)
    assert caught.value.reason is Reason.BAD_FILE


def test_values_written_by_a_tenant_are_bounded_when_read(tmp_path: Path) -> None:
    create_slot(tmp_path, _spec())
    size = (tmp_path / USAGE_FILE).stat().st_size
    (tmp_path / USAGE_FILE).write_bytes(b"\xff" * size)
    usage = UsagePage.of_slot(tmp_path)
    device = usage.device(0)
    assert device.inflight_ns <= 60 * 10**9
    assert device.kernel_ns_max <= 10 * 10**9
    assert device.waiting_count <= 10**6
    assert max(device.used_bytes, device.peak_bytes) <= 1 << 48
    procs = usage.procs()
    assert len(procs) == layout.PROCS_MAX
    assert {proc.state for proc in procs} == {layout.ProcState.TAKEN}
    assert max(procs[0].used_bytes) <= 1 << 48


def test_truncated_usage_file_reads_as_unused(tmp_path: Path) -> None:
    create_slot(tmp_path, _spec())
    usage = UsagePage.of_slot(tmp_path)
    assert usage.address
    os.truncate(tmp_path / USAGE_FILE, 100)
    assert usage.device(0).used_bytes == 0
    assert usage.demand_ns(0) == 0
    assert usage.procs() == []
    with pytest.raises(CalabashError, match="has 100 bytes, not"):
        _ = usage.address


def test_new_plan_keeps_the_current_one_until_it_begins(tmp_path: Path) -> None:
    create_slot(tmp_path, _spec())
    limits = LimitsPage.of_slot(tmp_path)
    limits.set_gate(0, Gate.TURN, TurnPlan(from_ns=100, start_ns=100, end_ns=110, period_ns=20), neighbours=1)
    limits.set_gate(0, Gate.TURN, TurnPlan(from_ns=140, start_ns=145, end_ns=150, period_ns=30), neighbours=2)
    device = limits.device(0)
    assert (device.previous.start_ns, device.previous.end_ns, device.previous.period_ns) == (100, 110, 20)
    assert (device.plan.from_ns, device.plan.start_ns, device.neighbours) == (140, 145, 2)
    assert device.word == 4
    limits.set_gate(0, Gate.RATE)
    limits.set_gate(0, Gate.TURN, TurnPlan(from_ns=200, start_ns=200, end_ns=210, period_ns=20))
    assert limits.device(0).previous.end_ns == 0


def test_process_that_waits_at_the_gate_is_woken_by_a_new_order(tmp_path: Path) -> None:
    create_slot(tmp_path, _spec())
    program = (
        "import ctypes, mmap, sys\n"
        "from calabash.node.slots.layout import LimitsStruct, LimitsDeviceStruct\n"
        "file = open(sys.argv[1], 'r+b'); page = LimitsStruct.from_buffer(mmap.mmap(file.fileno(), 0))\n"
        "at = ctypes.addressof(page.device[0]) + LimitsDeviceStruct.word.offset\n"
        "print('asleep', flush=True)\n"
        "limit = (ctypes.c_long * 2)(200, 0)\n"
        "ctypes.CDLL(None).syscall(202, ctypes.c_void_p(at), 0, 0, limit, None, 0)\n"
        "print(page.device[0].gate, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / LIMITS_FILE)], stdout=subprocess.PIPE, text=True
    ) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "asleep\n"
        limits = LimitsPage.of_slot(tmp_path)
        woken = threading.Event()
        began = time.monotonic()

        def wake() -> None:
            # the child may not have entered the futex call yet: wake until it has answered
            while not woken.wait(0.01):
                limits.set_gate(0, Gate.OPEN)

        ringer = threading.Thread(target=wake)
        ringer.start()
        answer = sleeper.stdout.readline()
        woken.set()
        ringer.join()
    assert answer == f"{int(Gate.OPEN)}\n"
    assert time.monotonic() - began < 100
