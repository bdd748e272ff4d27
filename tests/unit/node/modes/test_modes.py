"""Executors of the sharing modes: limits of slots, guarded device nodes, compute modes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from calabash.adapters.host.acl import access_of
from calabash.adapters.host.mounts import mount, unmount
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import ComputeMode, Device, DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Placement, Slice
from calabash.model.units import MIB
from calabash.node.devices.inventory import Inventory
from calabash.node.modes.compute_modes import ComputeModes
from calabash.node.modes.file_guards import Guards
from calabash.node.modes.protocol import NodeTools
from calabash.node.modes.registry import executor_of, open_modes
from calabash.sharing.registry import SHARING_MODES

CARD = DeviceUuid("GPU-1")
TENANT_UID, OTHER_UID = 65534, 65533
BUS_ID = "00000000:65:00.0"


class Cards:
    vendor = "nvidia"

    def __init__(self) -> None:
        self.mode: ComputeMode = ComputeMode.DEFAULT
        self.refuses = False

    def devices(self) -> tuple[Device, ...]:
        return (Device(uuid=CARD, index=0, vendor="other", model="A100", memory_mib=40_000, pci_bus_id=BUS_ID),)

    def read(self, uuid: DeviceUuid) -> Any:
        raise CalabashError("it is only a list of cards", reason=Reason.UNHEALTHY)

    def compute_mode(self, uuid: DeviceUuid) -> ComputeMode:
        return self.mode

    def set_compute_mode(self, uuid: DeviceUuid, mode: ComputeMode) -> None:
        if self.refuses:
            raise CalabashError("not now", reason=Reason.UNHEALTHY)
        self.mode = mode


def _record(mode: str, *, name: str = "a1", uid: int = TENANT_UID, memory_mib: int = 1024) -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=memory_mib, core_percent=30)
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1024, core_percent=30, policy=ComputePolicy.BURST, priority=3),
        placement=Placement(node=NodeName("n"), mode=ModeName(mode), slices=(part,)),
        uid=uid,
    )


def _tools(home: Path, *, cards: Cards | None = None, library: Path | None = None, **more: Any) -> NodeTools:
    inventory = Inventory([cast("Any", cards or Cards())])
    more.setdefault("environment", {})
    return NodeTools(home=home, inventory=inventory, library=library or home / "none.so", **more)


def test_every_sharing_mode_has_an_executor(tmp_path: Path) -> None:
    assert set(open_modes(_tools(tmp_path))) == set(SHARING_MODES)


def test_unknown_mode_is_refused_with_a_list_of_the_modes_of_the_node(tmp_path: Path) -> None:
    with pytest.raises(CalabashError) as caught:
        executor_of("warp", open_modes(_tools(tmp_path)))
    assert caught.value.reason is Reason.UNKNOWN_MODE
    assert all(name in caught.value.hint for name in SHARING_MODES)


@pytest.mark.parametrize("mode", ["exclusive", "timeslice"])
def test_slot_of_a_mode_without_amounts_has_no_limits(tmp_path: Path, mode: str) -> None:
    (device,) = executor_of(mode, open_modes(_tools(tmp_path))).prepare(_record(mode, memory_mib=0))
    assert (device.uuid, device.memory_limit_bytes, device.policy) == (CARD, 0, None)


def test_timeslice_slot_with_requested_memory_has_a_limit_if_the_library_is_built(tmp_path: Path) -> None:
    with pytest.raises(CalabashError) as caught:
        executor_of("timeslice", open_modes(_tools(tmp_path))).prepare(_record("timeslice"))
    assert "make native" in caught.value.hint
    library = tmp_path / "libcalabash.so"
    library.touch()
    (device,) = executor_of("timeslice", open_modes(_tools(tmp_path, library=library))).prepare(_record("timeslice"))
    assert (device.memory_limit_bytes, device.core_percent, device.policy) == (1024 * MIB, 100, None)


def test_vgpu_slot_has_memory_share_policy_and_priority(tmp_path: Path) -> None:
    library = tmp_path / "libcalabash.so"
    library.touch()
    (device,) = executor_of("vgpu", open_modes(_tools(tmp_path, library=library))).prepare(_record("vgpu"))
    assert device.memory_limit_bytes == 1024 * MIB
    assert (device.core_percent, device.policy, device.priority) == (30, ComputePolicy.BURST, 3)


def test_vgpu_slice_is_refused_without_the_library(tmp_path: Path) -> None:
    with pytest.raises(CalabashError) as caught:
        executor_of("vgpu", open_modes(_tools(tmp_path))).prepare(_record("vgpu"))
    assert "make native" in caught.value.hint


# -- guarded device nodes ------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    """Make a root directory with the driver's files of one card."""
    if os.geteuid() != 0:
        pytest.skip("device nodes are guarded by root")
    root = tmp_path / "machine"
    root.mkdir()
    for directory in (root, *root.parents[:3]):
        directory.chmod(0o755)
    mount("calabash-test", root, "tmpfs", "mode=755,size=1m")  # access lists whatever lies below
    try:
        information = root / "proc/driver/nvidia/gpus/0000:65:00.0/information"
        information.parent.mkdir(parents=True)
        information.write_text("Model: \t\t A100\nDevice Minor: \t 3\n")
        (root / "dev").mkdir()
        (root / "dev/nvidia3").touch()
        (root / "dev/nvidia3").chmod(0o666)
        yield root
    finally:
        unmount(root)


def _opens(path: Path, uid: int) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.open(path, os.O_RDWR)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _exclusive(home: Path, machine: Path, **more: Any) -> Any:
    return executor_of("exclusive", open_modes(_tools(home, device_root=machine, **more)))


def test_device_node_of_an_exclusive_card_is_open_to_its_tenant_only_until_the_end(
    tmp_path: Path, machine: Path
) -> None:
    node = machine / "dev/nvidia3"
    executor = _exclusive(tmp_path, machine)
    executor.enter(_record("exclusive"), None)
    assert (_opens(node, TENANT_UID), _opens(node, OTHER_UID)) == (True, False)
    assert (tmp_path / "guards.json").stat().st_mode & 0o777 == 0o600
    executor.leave(_record("exclusive"))
    assert (_opens(node, TENANT_UID), _opens(node, OTHER_UID)) == (True, True)
    assert access_of(node).mode == 0o666
    assert access_of(node).acl == b""


def test_device_node_of_an_allocation_of_root_is_open_to_root_only(tmp_path: Path, machine: Path) -> None:
    executor = _exclusive(tmp_path, machine)
    executor.enter(_record("exclusive", uid=0), None)
    assert not _opens(machine / "dev/nvidia3", TENANT_UID)
    executor.leave(_record("exclusive", uid=0))
    assert _opens(machine / "dev/nvidia3", TENANT_UID)


def test_guard_left_by_a_crash_is_removed_by_the_next_pool(tmp_path: Path, machine: Path) -> None:
    _exclusive(tmp_path, machine).enter(_record("exclusive"), None)
    _exclusive(tmp_path, machine).recover([_record("exclusive")])
    assert not _opens(machine / "dev/nvidia3", OTHER_UID)
    _exclusive(tmp_path, machine).recover([])
    assert _opens(machine / "dev/nvidia3", OTHER_UID)


def test_recorded_guard_that_was_not_set_is_set_by_the_next_pool(tmp_path: Path, machine: Path) -> None:
    _exclusive(tmp_path, machine).enter(_record("exclusive"), None)
    (machine / "dev/nvidia3").chmod(0o666)
    _exclusive(tmp_path, machine).recover([_record("exclusive")])
    assert not _opens(machine / "dev/nvidia3", OTHER_UID)


def test_first_access_of_a_guarded_file_is_kept_after_a_crash_between_two_tenants(
    tmp_path: Path, machine: Path
) -> None:
    _exclusive(tmp_path, machine).enter(_record("exclusive"), None)
    _exclusive(tmp_path, machine).enter(_record("exclusive", name="b2", uid=OTHER_UID), None)
    assert not _opens(machine / "dev/nvidia3", TENANT_UID)
    _exclusive(tmp_path, machine).leave(_record("exclusive", name="b2"))
    assert access_of(machine / "dev/nvidia3").mode == 0o666


def test_device_node_whose_access_was_changed_is_guarded_again_and_reported(tmp_path: Path, machine: Path) -> None:
    executor = _exclusive(tmp_path, machine)
    executor.enter(_record("exclusive"), None)
    assert executor.verify([]) == []
    (machine / "dev/nvidia3").chmod(0o666)  # what the driver's helper does
    assert _opens(machine / "dev/nvidia3", OTHER_UID)
    assert executor.verify([]) == [f"access to {machine}/dev/nvidia3 had been changed and is guarded again"]
    assert not _opens(machine / "dev/nvidia3", OTHER_UID)


def test_no_device_node_is_changed_without_a_device_root(tmp_path: Path, machine: Path) -> None:
    executor_of("exclusive", open_modes(_tools(tmp_path))).enter(_record("exclusive"), cast("Any", None))
    assert access_of(machine / "dev/nvidia3").mode == 0o666


def test_exclusive_card_is_refused_if_its_device_node_cannot_be_guarded(
    tmp_path: Path, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("calabash.node.modes.file_guards.set_access", refused)
    with pytest.raises(CalabashError) as caught:
        _exclusive(tmp_path, machine).enter(_record("exclusive"), None)
    assert caught.value.reason is Reason.NOT_PERMITTED
    simulated = _exclusive(tmp_path, machine, environment={"CALABASH_SIM": "node.state"})
    simulated.enter(_record("exclusive"), None)  # no card is behind that node


def test_damaged_file_of_guards_is_treated_as_empty_and_replaced(tmp_path: Path, machine: Path) -> None:
    (tmp_path / "guards.json").write_text("{")
    guards = Guards(tmp_path / "guards.json")
    guards.set(AllocationId("a1"), str(machine / "dev/nvidia3"), uid=TENANT_UID)
    again = Guards(tmp_path / "guards.json")
    again.restore(AllocationId("a1"))
    assert access_of(machine / "dev/nvidia3").mode == 0o666


def test_compute_mode_is_exclusive_only_if_configured(tmp_path: Path) -> None:
    for configured, mode in ((False, ComputeMode.DEFAULT), (True, ComputeMode.EXCLUSIVE_PROCESS)):
        cards = Cards()
        executor = executor_of("exclusive", open_modes(_tools(tmp_path, cards=cards, one_process=configured)))
        executor.enter(_record("exclusive"), cast("Any", None))
        assert cards.mode is mode
        executor.leave(_record("exclusive"))
        assert cards.mode is ComputeMode.DEFAULT


# -- compute modes -------------------------------------------------------------------------------------------------------


def _compute_modes(home: Path, cards: Cards) -> ComputeModes:
    return ComputeModes(home / "modes.json", lambda _: cast("Any", cards))


@pytest.mark.parametrize("before", list(ComputeMode))
def test_compute_mode_is_restored_when_the_allocation_ends(tmp_path: Path, before: ComputeMode) -> None:
    cards = Cards()
    cards.mode = before
    modes = _compute_modes(tmp_path, cards)
    assert modes.make_exclusive(CARD) is False
    assert cards.compute_mode(CARD) is ComputeMode.EXCLUSIVE_PROCESS
    modes.restore(CARD)
    assert cards.compute_mode(CARD) is before
    assert not (tmp_path / "modes.json").exists()
    cards.mode = ComputeMode.PROHIBITED  # another program else's from here on
    modes.restore(CARD)
    assert cards.compute_mode(CARD) is ComputeMode.PROHIBITED


def test_compute_mode_is_restored_by_the_next_pool_after_a_crash(tmp_path: Path) -> None:
    cards = Cards()
    cards.mode = ComputeMode.PROHIBITED
    _compute_modes(tmp_path, cards).make_exclusive(CARD)
    again = _compute_modes(tmp_path, cards)
    again.make_exclusive(CARD)
    again.keep_only({CARD})
    assert cards.compute_mode(CARD) is ComputeMode.EXCLUSIVE_PROCESS
    again.keep_only(())
    assert cards.compute_mode(CARD) is ComputeMode.PROHIBITED


def test_compute_mode_restored_during_a_check_stays_restored(tmp_path: Path) -> None:
    cards = Cards()
    modes = _compute_modes(tmp_path, cards)
    modes.make_exclusive(CARD)
    check, put_back = cards.compute_mode, threading.Thread(target=modes.restore, args=(CARD,))

    def looked_at(uuid: Any) -> ComputeMode:
        found = check(uuid)
        put_back.start()
        put_back.join(timeout=0.2)  # nothing keeps it from going on here but what is tested
        return found

    cards.compute_mode = looked_at  # type: ignore[method-assign]
    modes.make_exclusive(CARD)
    put_back.join()
    modes.keep_only(())
    assert check(CARD) is ComputeMode.DEFAULT


def test_compute_mode_is_not_changed_if_it_cannot_be_recorded(tmp_path: Path) -> None:
    cards = Cards()
    with pytest.raises(CalabashError):
        _compute_modes(tmp_path / "nowhere", cards).make_exclusive(CARD)
    assert cards.compute_mode(CARD) is ComputeMode.DEFAULT


def test_compute_mode_that_was_changed_is_set_again_and_reported(tmp_path: Path) -> None:
    cards = Cards()
    modes = _compute_modes(tmp_path, cards)
    modes.make_exclusive(CARD)
    assert modes.make_exclusive(CARD) is False
    cards.mode = ComputeMode.DEFAULT
    assert modes.make_exclusive(CARD) is True
    assert cards.compute_mode(CARD) is ComputeMode.EXCLUSIVE_PROCESS


def test_compute_mode_that_cannot_be_restored_is_tried_again(tmp_path: Path) -> None:
    cards = Cards()
    modes = _compute_modes(tmp_path, cards)
    modes.make_exclusive(CARD)
    cards.refuses = True
    modes.restore(CARD)
    assert cards.compute_mode(CARD) is ComputeMode.EXCLUSIVE_PROCESS
    cards.refuses = False
    modes.keep_only(())
    assert cards.compute_mode(CARD) is ComputeMode.DEFAULT
