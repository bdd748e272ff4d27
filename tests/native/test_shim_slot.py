"""Tests of the slot: a program without trusted limits gets no GPU."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.native.machine import marked
from tests.native.shim_world import GIB, NOT_PERMITTED, SUCCESS, Slot, World, program

from calabash.adapters.host.cgroups.groups import find_hierarchy
from calabash.node.slots.layout import LIMITS_LEASELESS, LimitsStruct


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return World.create(tmp_path).slot(cap=GIB)


def init(slot: Slot, **more: str) -> tuple[str, str]:
    process = slot.start(program("tenant"), "init", **more)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.strip(), err


def poke(path: Path, offset: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value)


def replace_by_link(path: Path) -> None:
    moved = path.with_suffix(".moved")
    path.rename(moved)
    path.symlink_to(moved)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


SPOILS: dict[str, Callable[[Path], object]] = {
    "limits missing": lambda s: (s / "limits").unlink(),
    "usage missing": lambda s: (s / "usage").unlink(),
    "lease missing": lambda s: (s / "lease").unlink(),
    "limits cut short": lambda s: os.truncate(s / "limits", 8000),
    "limits too long": lambda s: os.truncate(s / "limits", 8193),
    "usage empty": lambda s: os.truncate(s / "usage", 0),
    "limits of another format": lambda s: poke(s / "limits", 0, b"NOTLIMIT"),
    "usage of another format": lambda s: poke(s / "usage", 0, b"NOTUSAGE"),
    "limits of another version": lambda s: poke(s / "limits", 8, struct.pack("<I", 2)),
    "limits without devices": lambda s: poke(s / "limits", 12, struct.pack("<I", 0)),
    "limits with too many devices": lambda s: poke(s / "limits", 12, struct.pack("<I", 17)),
    "limits for ever being written": lambda s: poke(s / "limits", 16, struct.pack("<I", 1)),
    "limits writable by all": lambda s: (s / "limits").chmod(0o666),
    "limits writable by the group": lambda s: (s / "limits").chmod(0o664),
    "directory writable by all": lambda s: s.chmod(0o777),
    "limits a symbolic link": lambda s: replace_by_link(s / "limits"),
    "usage a symbolic link": lambda s: replace_by_link(s / "usage"),
    "directory a symbolic link": replace_by_link,
    "limits a pipe": lambda s: replace_by_fifo(s / "limits"),
}
NEEDS_ROOT: dict[str, Callable[[Path], object]] = {
    "limits of another owner": lambda s: os.chown(s / "limits", 54321, -1),
    "directory of another owner": lambda s: os.chown(s, 54321, -1),
}
SPOILED = [*SPOILS, *(NEEDS_ROOT if os.geteuid() == 0 else ())]


@pytest.mark.parametrize("spoil", marked(SPOILED, {spoil for spoil in SPOILED if "limits" in spoil}))
def test_slot_that_is_not_as_it_should_be_refuses_the_gpu_in_one_clear_line(slot: Slot, spoil: str) -> None:
    assert init(slot) == (str(SUCCESS), "")
    (SPOILS | NEEDS_ROOT)[spoil](slot.path)
    answer, message = init(slot)
    assert answer == str(NOT_PERMITTED)
    assert message.startswith("calabash: ")
    assert message.count("\n") == 1
    assert str(slot.path) in message


def test_no_slot_at_all_refuses_the_gpu_and_says_what_to_do(slot: Slot) -> None:
    answer, message = init(slot, CALABASH_SLOT="")
    assert answer == str(NOT_PERMITTED)
    assert "calabash run" in message


def test_relative_path_is_not_followed(slot: Slot) -> None:
    answer, _ = init(slot, CALABASH_SLOT=os.path.relpath(slot.path))
    assert answer == str(NOT_PERMITTED)


def test_nvml_is_refused_as_well(slot: Slot) -> None:
    (slot.path / "limits").unlink()
    script = "import pynvml\ntry:\n    pynvml.nvmlInit()\nexcept pynvml.NVMLError as e:\n    print(e.value)"
    process = slot.start("python3", "-c", script, PYTHONPATH=os.pathsep.join(sys_path()))
    out, err = process.communicate(timeout=60)
    assert (out.strip(), err.count("\n")) == ("4", 1)


def sys_path() -> list[str]:
    return [p for p in sys.path if p.endswith("site-packages")]


@pytest.mark.aarch64
def test_every_process_holds_the_lease_until_it_dies(slot: Slot) -> None:
    process = slot.start(program("tenant"), "hold", "4096")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with (slot.path / "lease").open("rb") as lease:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process.kill()
        process.communicate()
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_allocation_that_has_ended_takes_no_new_process(slot: Slot) -> None:
    with (slot.path / "lease").open("rb") as lease:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer, message = init(slot)
    assert answer == str(NOT_PERMITTED)
    assert "ended" in message


def test_process_is_named_in_the_usage_page_while_it_lives(slot: Slot) -> None:
    process = slot.start(program("tenant"), "hold", "4096")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (proc,) = slot.procs()
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    assert proc.pid == process.pid
    assert proc.start_time == int(stat[stat.rindex(")") + 2 :].split()[19])
    assert proc.used_bytes[0] == 4096
    assert proc.context_count == 1
    process.kill()
    process.communicate()
    assert slot.reap(proc) == 1
    assert slot.procs() == []
    assert slot.usage.device(0).used_bytes == 0


def test_exec_gives_the_memory_to_nobody(slot: Slot) -> None:
    """A shell of the container runs one program after another, each with nearly the whole cap."""
    command = " && ".join([f"{program('tenant')} alloc {GIB - (1 << 20)}"] * 4)
    assert slot.run("/bin/sh", "-c", command).split() == [str(SUCCESS)] * 4


@pytest.mark.aarch64
def test_tenant_cannot_write_its_limits(slot: Slot) -> None:
    process = slot.start(program("tenant"), "hold", "4096")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    process.kill()
    process.communicate()
    (line,) = [line for line in maps.splitlines() if line.endswith(str(slot.path / "limits"))]
    assert line.split()[1] == "r--s"


@pytest.mark.aarch64
def test_shim_adds_no_descriptor_below_200(slot: Slot) -> None:
    process = slot.start(program("tenant"), "hold", "4096")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    links = {fd: os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}
    process.kill()
    process.communicate()
    assert [int(fd) >= 200 for fd, link in links.items() if link.startswith(str(slot.path))] == [True]


@pytest.mark.aarch64
def test_slot_whose_membership_is_the_kernels_needs_no_lease_and_takes_none(slot: Slot) -> None:
    (slot.path / "lease").unlink()
    offset: int = LimitsStruct.flags.offset  # type: ignore[attr-defined]
    poke(slot.path / "limits", offset, struct.pack("<I", LIMITS_LEASELESS))
    assert init(slot) == (str(SUCCESS), "")
    process = slot.start(program("tenant"), "hold", "4096")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
    process.kill()
    process.communicate()
    assert [link for link in links if link.startswith(str(slot.path))] == []


def test_lease_that_is_a_pipe_refuses_the_gpu_instead_of_waiting_for_a_writer(slot: Slot) -> None:
    replace_by_fifo(slot.path / "lease")
    answer, message = init(slot)
    assert answer == str(NOT_PERMITTED)
    assert "lease" in message


@pytest.fixture
def member() -> Iterator[list[str]]:
    """Return a command prefix that makes a program a member of allocation ``slot`` of a pool of root."""
    hierarchy = find_hierarchy()
    if os.geteuid() != 0 or hierarchy is None:
        pytest.skip("control groups can be made by root, where there is a hierarchy of version 2")
    pool = hierarchy.directory / f"calabash-{os.getpid():08x}"
    group = pool / "slot"
    group.mkdir(parents=True)
    yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    group.rmdir()
    pool.rmdir()


def refusal(slot: Slot, member: list[str]) -> str:
    process = slot.start(*member, program("tenant"), "init")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert err.count("\n") == (out.strip() != str(SUCCESS))
    return err if out.strip() == str(NOT_PERMITTED) else out.strip()


def test_member_of_roots_pool_runs_in_its_own_slot(slot: Slot, member: list[str]) -> None:
    assert refusal(slot, member) == str(SUCCESS)


def test_member_of_roots_pool_cannot_take_the_slot_of_another_allocation(slot: Slot, member: list[str]) -> None:
    larger = slot.world.slot("larger", cap=8 * GIB)
    assert init(larger) == (str(SUCCESS), ""), "whoever is no member may"
    assert "is not that of this process" in refusal(larger, member)


def test_member_of_roots_pool_cannot_forge_a_slot_where_it_can_write(
    slot: Slot, member: list[str], tmp_path: Path
) -> None:
    """The slot itself is valid, but its directory is writable by other users."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    forged = open_to_all / "slot"
    slot.path.rename(forged)
    moved = Slot(world=slot.world, path=forged)
    assert "does not belong to the pool" in refusal(moved, member)
    open_to_all.chmod(0o755)
    assert refusal(moved, member) == str(SUCCESS)
