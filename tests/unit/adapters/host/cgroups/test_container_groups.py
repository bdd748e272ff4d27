"""Control groups of containers on cgroup v1 and v2 hosts and under both cgroup drivers of the kubelet."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from calabash.adapters.host.cgroups import container_groups as host_groups
from calabash.adapters.host.cgroups.container_groups import (
    ContainerHierarchy,
    container_groups,
    find_container_hierarchy,
    group_name_in,
    mounted_devices,
    pod_groups,
)
from calabash.adapters.host.mounts import mounts

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
DIGITS = UID.replace("-", "")
CONTAINER = "8ac5b6a1c0cd7d65b6b9"

UNIFIED = b"""\
24 29 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
31 24 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
40 24 0:33 / /sys/fs/bpf rw,nosuid,nodev,noexec,relatime shared:12 - bpf bpf rw,mode=700
"""
HYBRID = b"""\
32 24 0:28 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
33 32 0:29 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime shared:10 - cgroup2 cgroup2 rw,nsdelegate
34 32 0:30 / /sys/fs/cgroup/systemd rw,nosuid,nodev,noexec,relatime shared:11 - cgroup cgroup rw,xattr,name=systemd
37 32 0:33 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:14 - cgroup cgroup rw,cpu,cpuacct
38 32 0:34 / /sys/fs/cgroup/freezer rw,nosuid,nodev,noexec,relatime shared:15 - cgroup cgroup rw,freezer
"""
# A runtime that hides the host's groups from the agent: its own group, and the host's hierarchy by way of a volume.
HIDDEN = b"""\
900 880 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw
901 880 0:27 /../../../.. /host/sys/fs/cgroup rw,nosuid,nodev,noexec,relatime master:9 - cgroup2 cgroup2 rw
"""
BESIDE = b"901 880 0:27 /../../other.slice /x rw,relatime - cgroup2 cgroup2 rw\n"
ESCAPED = b"31 24 0:27 / /sys/fs/c\\040group rw,relatime shared:9 - cgroup2 cgroup2 rw\n"

CGROUPFS = f"/kubepods/burstable/pod{UID}/{CONTAINER}"
CGROUPFS_GUARANTEED = f"/kubepods/pod{UID}/{CONTAINER}"
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{CONTAINER}.scope"
SYSTEMD_GUARANTEED = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
CRIO = f"/kubepods.slice/kubepods-besteffort.slice/{SLICE.replace('burstable', 'besteffort')}/crio-{CONTAINER}.scope"
NESTED = f"/kubelet.slice/kubelet{SYSTEMD}"  # --cgroup-root


@pytest.mark.parametrize(
    ("mountinfo", "directory", "controller"),
    [
        (UNIFIED, "/sys/fs/cgroup", ""),
        (HYBRID, "/sys/fs/cgroup/freezer", "freezer"),
        (HYBRID.replace(b"freezer", b"pids"), "/sys/fs/cgroup/unified", ""),
        (HIDDEN, "/host/sys/fs/cgroup", ""),
        (ESCAPED, "/sys/fs/c group", ""),
    ],
    ids=["version-2-alone", "both", "both-without-freezer", "hidden", "escaped"],
)
def test_cgroup_hierarchy_of_a_host_is_found_by_its_mounts(mountinfo: bytes, directory: str, controller: str) -> None:
    found = find_container_hierarchy(mounts(mountinfo))
    assert found == ContainerHierarchy(directory=Path(directory), controller=controller)


@pytest.mark.parametrize("mountinfo", [b"", BESIDE, b"31 24 0:27 / /sys\n", b"\xff\xfe - - -\n"])
def test_host_without_mounted_hierarchy_has_none(mountinfo: bytes) -> None:
    assert find_container_hierarchy(mounts(mountinfo)) is None


@pytest.mark.parametrize(
    "group",
    [CGROUPFS, CGROUPFS_GUARANTEED, SYSTEMD, SYSTEMD_GUARANTEED, CRIO, NESTED],
    ids=["cgroupfs", "cgroupfs-guaranteed", "systemd", "systemd-guaranteed", "cri-o", "nested"],
)
def test_containers_of_a_pod_are_found_under_both_cgroup_drivers(tmp_path: Path, group: str) -> None:
    directory = tmp_path / group.lstrip("/")
    (directory / "nested-by-the-tenant").mkdir(parents=True)
    (tmp_path / "system.slice" / "containerd.service").mkdir(parents=True)
    pods = pod_groups(ContainerHierarchy(directory=tmp_path, controller=""))
    assert pods == {DIGITS: directory.parent}
    assert container_groups(pods[DIGITS]) == [directory]


@pytest.mark.parametrize("group", [CGROUPFS, SYSTEMD, CRIO])
def test_group_of_a_process_is_read_from_the_hierarchy_in_use(group: str) -> None:
    unified = f"0::{group}\n".encode()
    both = f"12:freezer:{group}\n5:cpu,cpuacct:/elsewhere\n1:name=systemd:/other\n0::/unified\n".encode()
    assert group_name_in(unified, "") == group
    assert group_name_in(unified, "freezer") == ""
    assert group_name_in(both, "freezer") == group
    assert group_name_in(both, "cpuacct") == "/elsewhere"
    assert group_name_in(both, "") == "/unified"


def test_mounts_of_a_process_with_the_root_of_the_host_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of a container that is being created sees the slots of all allocations."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        monkeypatch.setattr(host_groups, "_ROOT_OF_HOST", "/proc")
        assert os.stat("/proc").st_dev in mounted_devices(child.pid), "it has another root than the host"
        monkeypatch.setattr(host_groups, "_ROOT_OF_HOST", f"/proc/{os.getpid()}/root")
        assert mounted_devices(child.pid) == frozenset()
    finally:
        child.kill()
        child.wait()


def test_mounts_of_a_process_with_an_overmounted_root_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"""\
24 1 0:22 / / rw,relatime - overlay overlay rw
25 24 0:23 / /etc/slot ro,relatime - tmpfs tmpfs ro
26 24 0:24 / / rw,relatime - ext4 /dev/vda rw
27 26 0:25 / /var/slot rw,relatime - tmpfs tmpfs rw
"""
    monkeypatch.setattr(host_groups, "_has_root_of_host", lambda _pid: False)
    for count, expected in ((2, {0x16, 0x17}), (4, set())):
        text = b"".join(lines.splitlines(keepends=True)[:count])
        monkeypatch.setattr(host_groups, "open", lambda *_, text=text: io.BytesIO(text), raising=False)
        assert mounted_devices(1) == expected
