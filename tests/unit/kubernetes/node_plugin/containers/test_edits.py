"""Tests of CDI edits: libraries where the loader searches, and a slot of which only the usage page is writable."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.kubernetes.node_plugin.node_world import NODE

from calabash.adapters.cdi import ContainerEdits, MountEdit
from calabash.kubernetes.node_plugin.containers.edits import (
    PRELOAD_INSIDE,
    SHIM_INSIDE,
    SLOT_INSIDE,
    WORKER_INSIDE,
    EditsMaker,
)
from calabash.kubernetes.node_plugin.containers.host_driver import (
    HostDriver,
    find_driver,
    library_directories,
    simulated_driver,
)
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.agent import Grant
from calabash.node.modes.brokered.isolation import program_edits
from calabash.sharing.protocol import Edits as ModeEdits
from calabash.sharing.protocol import Mount
from calabash.sharing.registry import mode_named

FORWARDING = ("libcuda.so.1", "libnvidia-ml.so.1", "libcalabash-tls.so")


def _edits(
    tmp_path: Path,
    driver: HostDriver,
    nodes: tuple[Path, ...] = (),
    more: ModeEdits | None = None,
    *,
    name: str = "vgpu",
) -> ContainerEdits:
    slices = tuple(Slice(device=DeviceUuid(f"GPU-{i}"), memory_mib=1, core_percent=1) for i in range(2))
    record = AllocationRecord(
        id=AllocationId("a1"),
        state=AllocationState.GRANTED,
        request=GpuRequest(),
        placement=Placement(node=NodeName(NODE), mode=ModeName(name), slices=slices),
        slot="/var/lib/calabash/alloc/a1",
    )
    maker = EditsMaker(
        shim=Path("/opt/libcalabash.so"),
        preload=tmp_path / "ld.so.preload",
        driver=driver,
        forwarding=[Path("/opt/forwarding") / name for name in FORWARDING],
    )
    mode = mode_named(name).container_edits(slices, library="/opt/libcalabash.so", slot=record.slot)
    return maker.for_grant(Grant(record=record, edits=mode.joined(more or ModeEdits())), nodes)


def _at(edits: ContainerEdits, path: str) -> MountEdit:
    found = [mount for mount in edits.mounts if mount.container_path == path]
    assert len(found) == 1, f"{len(found)} mounts at {path}"
    return found[0]


def test_the_shim_is_preloaded_by_a_file_that_no_variable_undoes(tmp_path: Path) -> None:
    edits = _edits(tmp_path, HostDriver())
    preload = _at(edits, PRELOAD_INSIDE)
    assert Path(preload.host_path).read_text() == SHIM_INSIDE + "\n"
    assert "ro" in preload.options
    assert _at(edits, SHIM_INSIDE).host_path == "/opt/libcalabash.so"
    assert "LD_PRELOAD" not in dict(edits.env)


def test_of_the_slot_only_the_usage_page_can_be_written(tmp_path: Path) -> None:
    edits = _edits(tmp_path, HostDriver())
    slot, usage = _at(edits, SLOT_INSIDE), _at(edits, SLOT_INSIDE + "/usage")
    assert "ro" in slot.options
    assert "rw" in usage.options
    assert usage.host_path == "/var/lib/calabash/alloc/a1/usage"
    assert not [m for m in edits.mounts if "rw" in m.options and m is not usage]


def test_the_devices_are_named_and_other_runtimes_are_told_to_stay_away(tmp_path: Path) -> None:
    assert dict(_edits(tmp_path, HostDriver()).env) == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1",
    }


def test_what_a_mode_has_made_on_its_node_goes_into_the_container(tmp_path: Path) -> None:
    more = ModeEdits(
        environment=(("CUDA_VISIBLE_DEVICES", "MIG-1"),),
        mounts=(
            Mount(path="/var/lib/calabash/pipe", inside="/run/calabash/pipe", read_only=False),
            Mount(path="/var/lib/calabash/facts", inside="/run/calabash/facts"),
        ),
        device_nodes=("/dev/vfio/7",),
    )
    edits = _edits(tmp_path, HostDriver(), more=more)
    assert dict(edits.env)["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert "rw" in _at(edits, "/run/calabash/pipe").options
    assert "ro" in _at(edits, "/run/calabash/facts").options
    assert [node.path for node in edits.device_nodes] == ["/dev/vfio/7"]


def test_a_virtual_machines_container_has_the_group_of_its_card_and_nothing_of_the_driver(tmp_path: Path) -> None:
    driver = HostDriver(libraries=(Path("/usr/lib64/libcuda.so.580.1"),), nodes=(Path("/dev/nvidiactl"),))
    more = ModeEdits(device_nodes=("/dev/vfio/vfio", "/dev/vfio/7"))
    edits = _edits(tmp_path, driver, (Path("/dev/nvidia3"),), more, name="passthrough")
    assert [node.path for node in edits.device_nodes] == ["/dev/vfio/vfio", "/dev/vfio/7"]
    assert [mount.container_path for mount in edits.mounts] == [SLOT_INSIDE, f"{SLOT_INSIDE}/usage"]
    assert dict(edits.env) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_container_with_a_worker_has_its_socket_and_libraries_that_forward_and_nothing_of_card_driver_or_slot(
    tmp_path: Path,
) -> None:
    driver = HostDriver(
        libraries=(Path("/usr/lib64/libcuda.so.580.1"),), nodes=(Path("/dev/nvidiactl"),), state=tmp_path / "node.state"
    )
    more = program_edits(
        Path("/home/workers/a/worker.sock"), [Slice(device=DeviceUuid("GPU-7"), memory_mib=1, core_percent=1)]
    )
    edits = _edits(tmp_path, driver, (Path("/dev/nvidia3"),), more, name="brokered")
    assert edits.device_nodes == ()
    assert dict(edits.env) == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CUDA_VISIBLE_DEVICES": "GPU-7",
        "CALABASH_REMOTE": f"unix:{WORKER_INSIDE}",
    }
    assert _at(edits, WORKER_INSIDE).host_path == "/home/workers/a/worker.sock"
    rest = {(mount.host_path, mount.options[0]) for mount in edits.mounts if mount.container_path != WORKER_INSIDE}
    assert rest == {(f"/opt/forwarding/{name}", "ro") for name in FORWARDING}
    inside = {mount.container_path for mount in edits.mounts}
    beside = {f"{directory}/libcalabash-tls.so" for directory in library_directories()}
    assert beside < inside  # where the forwarding libraries, which load it, search it


def test_devices_of_a_simulated_machine_come_from_its_own_root_be_they_files_or_devices(tmp_path: Path) -> None:
    state, shown = tmp_path / "node.state", tmp_path / "root/dev"
    (shown / "vfio").mkdir(parents=True)
    (shown / "vfio/7").touch()
    (shown / "caps").symlink_to("/dev/null")
    more = ModeEdits(device_nodes=("/dev/vfio/7", "/dev/caps", "/dev/absent"))
    edits = _edits(tmp_path, HostDriver(state=state), more=more, name="passthrough")
    assert [(node.path, node.host_path) for node in edits.device_nodes] == [("/dev/caps", str(shown / "caps"))]
    assert _at(edits, "/dev/vfio/7").host_path == str(shown / "vfio/7")
    assert not [mount for mount in edits.mounts if "absent" in mount.container_path]
    assert "CALABASH_SIM" not in dict(edits.env)


@pytest.mark.parametrize("directory", ["usr/lib64", "usr/lib/x86_64-linux-gnu"])
def test_libraries_of_the_drivers_version_are_found_where_distributions_put_them(
    tmp_path: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    root = tmp_path / "host"
    (root / directory).mkdir(parents=True)
    for name in ("libcuda.so.580.1", "libnvidia-ptxjitcompiler.so.580.1", "libcuda.so.535.9", "libc.so.6"):
        (root / directory / name).touch()
    driver = find_driver(root, "580.1")
    assert sorted(file.name for file in driver.libraries) == ["libcuda.so.580.1", "libnvidia-ptxjitcompiler.so.580.1"]
    assert find_driver(tmp_path, "580.1", root="/host").libraries == tuple(
        Path("/host") / file.relative_to("/") for file in driver.libraries
    )
    edits = _edits(tmp_path, driver)
    for inside in ("/usr/lib64/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so"):
        assert _at(edits, inside).host_path == f"/{directory}/libcuda.so.580.1"
    assert _at(edits, "/usr/lib64/libnvidia-ptxjitcompiler.so.1").host_path.endswith("ptxjitcompiler.so.580.1")


def test_a_driver_without_a_version_has_no_libraries(tmp_path: Path) -> None:
    assert find_driver(tmp_path, "").libraries == ()


def test_device_nodes_keep_their_place_whatever_the_root_of_the_driver_is(tmp_path: Path) -> None:
    edits = _edits(tmp_path, HostDriver(nodes=(Path("/driver/dev/nvidiactl"),)), (Path("/driver/dev/nvidia3"),))
    assert [(n.path, n.host_path) for n in edits.device_nodes] == [
        ("/dev/nvidiactl", "/driver/dev/nvidiactl"),
        ("/dev/nvidia3", "/driver/dev/nvidia3"),
    ]


def test_a_simulated_node_is_shared_with_the_container(tmp_path: Path) -> None:
    edits = _edits(tmp_path, simulated_driver(Path("/sim"), Path("/home/sim/a/node.state")))
    assert dict(edits.env)["CALABASH_SIM"] == "/run/calabash/sim/node.state"
    assert _at(edits, "/run/calabash/sim").host_path == "/home/sim/a"
    assert _at(edits, "/usr/lib64/libcuda.so.1").host_path == "/sim/libcuda.so.1"
