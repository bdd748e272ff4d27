"""Device access of control groups, tested with real groups of the kernel and with harmless devices such as /dev/zero."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from calabash.adapters.host.cgroups.device_access import (
    DeviceHierarchy,
    deny_devices,
    find_device_hierarchy,
    majors_of,
)
from calabash.adapters.host.mounts import Mounted, mounts

ZERO, FULL, URANDOM = "/dev/zero", "/dev/full", "/dev/urandom"  # 1:5, 1:7 and 1:9
MEMORY = 1
TRY = """
import os, sys
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDONLY))
        print(path)
    except PermissionError:
        pass
"""


def versions() -> list[DeviceHierarchy]:
    found = [DeviceHierarchy(m.directory, 2) for m in mounts() if m.kind == "cgroup2" and m.root == "/"][:1]
    found += [DeviceHierarchy(m.directory, 1) for m in mounts() if m.kind == "cgroup" and m.directory.name == "devices"]
    return found


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def hierarchy(request: pytest.FixtureRequest) -> DeviceHierarchy:
    if os.geteuid() != 0:
        pytest.skip("control groups are root's to make")
    found = next((one for one in versions() if one.version == request.param), None)
    if found is None:
        pytest.skip(f"no control groups of version {request.param} that decide about devices")
    return found


@pytest.fixture
def group(hierarchy: DeviceHierarchy) -> Iterator[Path]:
    made = hierarchy.directory / f"calabash-test-{secrets.token_hex(4)}"
    (made / "below").mkdir(parents=True)
    yield made
    for directory in (made / "below", made):
        with suppress(OSError):
            directory.rmdir()


def opened(group: Path, *paths: str) -> set[str]:
    """Return the devices that a process of the group could open."""
    words = [sys.executable, "-S", "-c", TRY, str(group / "cgroup.procs"), *paths]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def test_denied_major_is_closed_to_the_group_and_those_below_and_open_to_others(
    hierarchy: DeviceHierarchy, group: Path
) -> None:
    assert opened(group / "below", ZERO, FULL) == {ZERO, FULL}
    deny_devices(hierarchy, group, {MEMORY: ()})
    assert opened(group, ZERO, FULL) == set()
    assert opened(group / "below", ZERO, FULL) == set()
    assert opened(hierarchy.directory, ZERO, FULL) == {ZERO, FULL}


def test_minors_that_were_granted_stay_open(hierarchy: DeviceHierarchy, group: Path) -> None:
    deny_devices(hierarchy, group, {MEMORY: (5, 9), 4242: ()})
    assert opened(group, ZERO, FULL, URANDOM) == {ZERO, URANDOM}


def test_group_below_cannot_allow_what_is_denied_above(hierarchy: DeviceHierarchy, group: Path) -> None:
    deny_devices(hierarchy, group, {MEMORY: ()})
    if hierarchy.version == 1:
        with pytest.raises(PermissionError):
            (group / "below" / "devices.allow").write_text("c 1:5 rwm")
    else:
        deny_devices(hierarchy, group / "below", {MEMORY: (5,)})
    assert opened(group / "below", ZERO) == set()


def test_denying_again_changes_nothing(hierarchy: DeviceHierarchy, group: Path) -> None:
    for _ in range(70):  # more than the kernel attaches to one group
        deny_devices(hierarchy, group, {MEMORY: (5,)})
    assert opened(group, ZERO, FULL) == {ZERO}


def test_group_that_is_gone_is_an_error_of_the_system(hierarchy: DeviceHierarchy) -> None:
    with pytest.raises(FileNotFoundError):
        deny_devices(hierarchy, hierarchy.directory / "calabash-test-none", {MEMORY: ()})


def test_majors_are_those_of_character_devices_with_the_names() -> None:
    text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n\nBlock devices:\n259 nvidia-caps\n"
    assert majors_of({"nvidia", "nvidia-uvm", "nvidia-caps"}, text) == {"nvidia": 195, "nvidia-uvm": 510}
    assert majors_of({"mem"}) == {"mem": MEMORY}


def test_version_1_decides_where_it_has_the_controller_and_the_outermost_view_serves() -> None:
    def entry(directory: str, kind: str, root: str = "/") -> Mounted:
        return Mounted(directory=Path(directory), root=root, kind=kind, writable=True)

    unified = entry("/sys/fs/cgroup", "cgroup2")
    hybrid = [entry("/sys/fs/cgroup/unified", "cgroup2"), entry("/sys/fs/cgroup/devices", "cgroup")]
    assert find_device_hierarchy([unified]) == DeviceHierarchy(Path("/sys/fs/cgroup"), 2)
    assert find_device_hierarchy(hybrid) == DeviceHierarchy(Path("/sys/fs/cgroup/devices"), 1)
    assert find_device_hierarchy([entry("/a", "cgroup2", "/.."), entry("/b", "cgroup2", "/../..")]) == DeviceHierarchy(
        Path("/b"), 2
    )
    assert find_device_hierarchy([entry("/x", "tmpfs")]) is None
