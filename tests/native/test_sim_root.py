"""Tests of a simulated node's root directory: the files, nodes and libraries of a real driver, kept current."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.simnode import SIMCTL, Node, compile_holder, simctl

VERSION = "580.95.05"
PRIVILEGED = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes and MIG need root, as on a real card")
LAYOUT = """
h = handles()[0]
nvmlDeviceSetMigMode(h, 1)
half, third = nvmlDeviceCreateGpuInstance(h, 9), nvmlDeviceCreateGpuInstance(h, 14)
made = [nvmlGpuInstanceCreateComputeInstance(gi, p) for gi, p in ((half, 1), (half, 0), (third, 1))]
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node.state", "2xA100-40GB,T4", compile_holder())
    assert simctl("root", made.state).returncode == 0
    yield made
    made.close()


def tree(node: Node) -> Path:
    return node.state.parent / "root"


def capabilities(node: Node) -> dict[str, int]:
    """Return the minor that each capability file names."""
    top = tree(node) / "proc/driver/nvidia/capabilities"
    return {
        str(path.parent.relative_to(top)) if path.name == "access" else path.name: int(path.read_text().split()[1])
        for path in top.rglob("*")
        if path.is_file()
    }


def caps_nodes(node: Node) -> set[str]:
    return {path.name for path in (tree(node) / "dev/nvidia-caps").iterdir()}


def test_node_has_no_root_unless_it_is_asked_for(tmp_path: Path) -> None:
    made = Node(tmp_path / "node.state", "T4", compile_holder())
    assert [path.name for path in tmp_path.iterdir()] == ["node.state"]
    made.close()


def test_each_card_has_its_information_and_its_files_on_the_bus(node: Node) -> None:
    for index, device in enumerate(node.show()["devices"]):
        bdf = device["pci_bus_id"].lower()[4:]
        lines = (tree(node) / "proc/driver/nvidia/gpus" / bdf / "information").read_text().splitlines()
        told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        assert told["Model"] == device["name"]
        assert told["GPU UUID"] == device["uuid"]
        assert told["Bus Location"] == bdf
        assert told["Device Minor"] == str(index)
        pci = tree(node) / "sys/bus/pci/devices" / bdf
        files = {name: (pci / name).read_text().strip() for name in ("vendor", "device", "class", "numa_node")}
        assert files["vendor"] == "0x10de"
        assert files["class"] == "0x030200"
        assert files["numa_node"] == str(device["numa_node"])
        identity = int(files["device"], 16) << 16 | int(files["vendor"], 16)
        assert (pci / "config").read_bytes()[:4] == identity.to_bytes(4, "little")
        assert (pci / "driver").resolve().name == "nvidia"


def test_driver_tells_its_version_and_the_libraries_bear_it(node: Node) -> None:
    assert VERSION in (tree(node) / "proc/driver/nvidia/version").read_text()
    assert (tree(node) / "sys/module/nvidia/version").read_text() == f"{VERSION}\n"
    libraries = tree(node) / "usr/lib/x86_64-linux-gnu"
    for name in ("libcuda.so", "libnvidia-ml.so"):
        real = libraries / f"{name}.{VERSION}"
        assert real.read_bytes() == (SIMCTL.parent / f"{name}.1").read_bytes()
        assert (libraries / name).resolve() == (libraries / f"{name}.1").resolve() == real


@PRIVILEGED
def test_device_nodes_are_those_of_the_trees_own_majors_and_lead_to_no_driver(node: Node) -> None:
    rows = (row.split() for row in (tree(node) / "proc/devices").read_text().splitlines())
    majors = {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit()}
    expected = {"nvidia0": 0, "nvidia1": 1, "nvidia2": 2, "nvidiactl": 255}
    for name, minor in expected.items():
        status = (tree(node) / "dev" / name).stat()
        assert stat.S_ISCHR(status.st_mode)
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (majors["nvidia"], minor)
    with pytest.raises(OSError, match="No such device or address") as refused:
        (tree(node) / "dev/nvidiactl").open("rb")
    assert refused.value.errno == errno.ENXIO


def test_ordinary_user_gets_empty_files_for_device_nodes_and_is_told(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        home = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
        os.chown(home, 65534, 65534)
        user = {"user": 65534, "group": 65534}
    else:
        home, user = tmp_path, {}
    for words in (("create", home / "node.state", "--gpus", "T4"), ("root", home / "node.state")):
        done = subprocess.run([SIMCTL, *map(str, words)], capture_output=True, text=True, check=True, **user)  # type: ignore[call-overload]
    assert "devices are empty files" in done.stdout
    assert (home / "root/dev/nvidia0").is_file()
    assert simctl("destroy", home / "node.state").returncode == 0
    home.rmdir()


@PRIVILEGED
def test_capabilities_and_their_nodes_follow_the_layout_of_mig(node: Node) -> None:
    plain = {"config": 1, "monitor": 2}
    assert capabilities(node) == plain
    node.nvml(LAYOUT + "answer = 0")
    minors = dict(line.split() for line in (tree(node) / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines())
    now = capabilities(node)
    instances = ("gi1", "gi1/ci0", "gi1/ci1", "gi2", "gi2/ci0")
    assert now == plain | {f"gpu0/mig/{i}": int(minors[f"gpu0/{i}/access"]) for i in instances}
    assert caps_nodes(node) == {f"nvidia-cap{minor}" for minor in now.values()}
    node.nvml(
        """
        h = handles()[0]
        gi = nvmlDeviceGetGpuInstanceById(h, 1)
        nvmlComputeInstanceDestroy(nvmlGpuInstanceGetComputeInstanceById(gi, 1))
        nvmlComputeInstanceDestroy(nvmlGpuInstanceGetComputeInstanceById(nvmlDeviceGetGpuInstanceById(h, 2), 0))
        nvmlGpuInstanceDestroy(nvmlDeviceGetGpuInstanceById(h, 2))
        answer = 0
        """
    )
    left = capabilities(node)
    assert set(left) == {*plain, "gpu0/mig/gi1", "gpu0/mig/gi1/ci0"}
    assert caps_nodes(node) == {f"nvidia-cap{minor}" for minor in left.values()}


@PRIVILEGED
def test_root_made_late_shows_the_layout_there_is(tmp_path: Path) -> None:
    made = Node(tmp_path / "node.state", "A100-40GB", compile_holder())
    made.nvml(LAYOUT + "answer = 0")
    assert simctl("root", made.state).returncode == 0
    assert "gpu0/mig/gi1/ci1" in capabilities(made)
    made.close()


def test_every_minor_of_the_table_is_of_one_capability_only(node: Node) -> None:
    rows = (tree(node) / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    minors = [int(row.split()[1]) for row in rows]
    assert len(minors) == len(set(minors)) == 2 + 3 * 15 * 9
    assert "gpu1/gi0/access 138" in rows  # as NVIDIA's driver counts


def test_destroying_a_node_removes_its_root_and_nothing_that_a_link_leads_to(node: Node, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (tree(node) / "proc/link").symlink_to(kept)
    assert simctl("destroy", node.state).returncode == 0
    assert not tree(node).exists()
    assert (kept / "file").exists()


def test_link_in_place_of_the_root_is_not_followed(tmp_path: Path) -> None:
    made = Node(tmp_path / "node.state", "T4", compile_holder())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").symlink_to("elsewhere")
    refused = simctl("root", made.state)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {tmp_path}/root is not a directory of this user\nhint: ")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    made.close()
