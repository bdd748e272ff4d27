"""Attacks on the slot of an allocation: forged and replaced limits pages, and reads by other users."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.world import until
from tests.hostile.people import Child, User, run_on_slice
from tests.hostile.world import HostileWorld

from calabash.node.slots.layout import LimitsDeviceStruct, LimitsStruct

CAP_MIB, WANTED_MIB = 1024, 8192
_SMALL: dict[str, Any] = {"memory_mib": CAP_MIB, "cores": 10}
_CLONE_NEWUSER, _CLONE_NEWNS, _PR_SET_DUMPABLE, _MS_BIND = 0x10000000, 0x00020000, 4, 4096
_LIMIT_AT: int = LimitsStruct.device.offset + LimitsDeviceStruct.memory_limit_bytes.offset  # type: ignore[attr-defined]

# In each script $CALABASH_SLOT is the tenant's own slot, $LIMIT the bytes of a raised limit, and "$@" the program.
_COPY = """
mount -t tmpfs -o size=2m,mode=755 x /mnt
cp "$CALABASH_SLOT/limits" "$CALABASH_SLOT/usage" /mnt
chmod 644 /mnt/limits
printf "$LIMIT" | dd of=/mnt/limits bs=1 seek=$LIMIT_AT conv=notrunc 2>/dev/null
"""
_OVER = 'mount --bind /mnt "$CALABASH_SLOT"\n'
_RUN = 'exec "$@"\n'
IMITATIONS: dict[str, tuple[str, str]] = {
    "a copy bound over it": ("unshare -Urm", _COPY + _OVER + _RUN),
    "a copy with a control group namespace": ("unshare -UrmC", _COPY + _OVER + _RUN),
    "a copy with a /proc of its own": ("unshare -UrmCpf --mount-proc", _COPY + _OVER + _RUN),
    "a copy with its group hidden": (
        "unshare -Urm",
        _COPY + "echo 0::/ > /mnt/group\nmount --bind /mnt/group /proc/$$/cgroup\n" + _OVER + _RUN,
    ),
    "a copy without /proc": ("unshare -Urm", _COPY + _OVER + "mount -t tmpfs x /proc\n" + _RUN),
    "limits bound over its file": ("unshare -Urm", _COPY + 'mount --bind /mnt/limits "$CALABASH_SLOT/limits"\n' + _RUN),
    "usage bound over its file": ("unshare -Urm", _COPY + 'mount --bind /mnt/usage "$CALABASH_SLOT/usage"\n' + _RUN),
    "a file system laid over it": (
        "unshare -Urm",
        "mount -t tmpfs x /mnt\nmkdir /mnt/upper /mnt/work\n"
        'mount -t overlay -o "userxattr,lowerdir=$CALABASH_SLOT,upperdir=/mnt/upper,workdir=/mnt/work" x /media\n'
        "cp /media/limits /mnt/limits\nrm -f /media/limits\ncp /mnt/limits /media/limits\n"
        'printf "$LIMIT" | dd of=/media/limits bs=1 seek=$LIMIT_AT conv=notrunc 2>/dev/null\n'
        'mount --bind /media "$CALABASH_SLOT"\n' + _RUN,
    ),
    "a copy at the path of containers": (
        "unshare -UrmC",
        _COPY + "mount -t tmpfs x /run\nmkdir -p /run/calabash/slot\nmount --bind /mnt /run/calabash/slot\n" + _RUN,
    ),
    "a copy that the environment names": ("unshare -UrmC", _COPY + "export CALABASH_SLOT=/mnt\n" + _RUN),
    "a copy in another root": (
        "unshare -UrmC",
        _COPY + 'mount --rbind / /media\nmount --bind /mnt "/media$CALABASH_SLOT"\nexec /usr/sbin/chroot /media "$@"\n',
    ),
    "a copy among no mapped users": ("unshare -Urm", _COPY + _OVER + 'exec unshare -U "$@"\n'),
    "a copy among users of a deeper map": ("unshare -Urm", _COPY + _OVER + 'exec unshare -Ur "$@"\n'),
}


def raised() -> dict[str, str]:
    """Return variables for a shell script that forges a limits page: a limit of 38 GiB for ``printf``, and its offset."""
    return {
        "LIMIT": "".join(f"\\{byte:03o}" for byte in struct.pack("<Q", 38 << 30)),
        "LIMIT_AT": str(_LIMIT_AT),
    }


def _answer(child: Child) -> str:
    """Wait until the program is refused the device or holds memory; return its output."""
    until(
        lambda: child.says("\nheld ") or child.says("calabash: ") or child.text().startswith("held ") or child.dead(),
        what="the program to be refused or to take memory",
    )
    return child.text()


def _refused(child: Child) -> None:
    """Fail unless the program was told in one line that its slot is not the pool's, and was given nothing."""
    text = _answer(child)
    assert "held " not in text, text
    assert "calabash: the slot" in text or ("calabash: " in text and "not on the file system" in text), text


@pytest.mark.parametrize("how", IMITATIONS)
def test_an_imitated_slot_is_refused_in_any_namespace(world: HostileWorld, mallory: User, how: str) -> None:
    unshare, script = IMITATIONS[how]
    if subprocess.run([*unshare.split(), "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel gives no such namespaces")
    forged = f"{unshare} sh -ec '{script}' sh {world.program('hostile')} hold {WANTED_MIB}"
    with world.unharmed():
        tenant = mallory.runs("/bin/sh", "-c", forged, environment=raised(), **_SMALL)
        _refused(tenant)


def _in_own_namespaces(home: str, slot: str, program: str) -> None:
    """Start a program on a new slice with the slot of an ended allocation.

    The old slot stays accessible because this process has entered a mount namespace of its own before the allocation ended.
    """
    parent_uid, libc = os.geteuid(), ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 1)  # else the maps are root's to write
    assert libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{parent_uid} {parent_uid} 1")
    assert libc.mount(slot.encode(), b"/mnt", None, _MS_BIND, None) == 0
    os.write(1, b"kept\n")
    os.read(0, 1)
    assert Path("/mnt/limits").exists(), "the ended slot was to be kept"
    run_on_slice(Path(home), [program, "hold", str(WANTED_MIB)], {"CALABASH_SLOT": "/mnt"}, _SMALL)


def test_a_slot_that_has_ended_is_refused_to_a_later_slice(world: HostileWorld, mallory: User) -> None:
    large = mallory.runs("/bin/cat", memory_mib=2 * WANTED_MIB, cores=10)
    slot = world.slot_of(large)
    keeper = mallory.keeps(_in_own_namespaces, str(world.home), str(slot), str(world.program("hostile")))
    assert keeper.line() == "kept"
    large.let_end()
    until(lambda: not world.held_by(mallory), what="the large slice to end")
    os.write(keeper.stdin, b"g")
    _refused(keeper)


@pytest.mark.parametrize("unshare", ["unshare -Urm", "unshare -UrmC", "unshare -UrmCpf --mount-proc"])
def test_another_slot_of_the_same_tenant_is_refused(world: HostileWorld, mallory: User, unshare: str) -> None:
    large = mallory.runs("/bin/cat", memory_mib=2 * WANTED_MIB, cores=10)
    script = 'mount --bind "$OTHER" "$CALABASH_SLOT"\nexec "$@"\n'
    command = f"{unshare} sh -ec '{script}' sh {world.program('hostile')} hold {WANTED_MIB}"
    with world.unharmed():
        other = {"OTHER": str(world.slot_of(large))}
        _refused(mallory.runs("/bin/sh", "-c", command, environment=other, **_SMALL))
        named = {"CALABASH_SLOT": str(world.slot_of(large))}
        _refused(mallory.runs(world.program("hostile"), "hold", str(WANTED_MIB), environment=named, **_SMALL))


@pytest.mark.parametrize(
    "unshare", ["", "unshare -Ur", "unshare -Urm", "unshare -UrmC", "unshare -UrmCpf --mount-proc"]
)
def test_a_program_in_namespaces_of_its_own_uses_its_slot(world: HostileWorld, mallory: User, unshare: str) -> None:
    """The slot works also while the pool does not run, because the program checks it with information from the kernel."""
    command = f"echo up; read go; exec {unshare} {world.program('hostile')} hold {WANTED_MIB}"
    program = mallory.runs("/bin/sh", "-c", command, **_SMALL)
    assert program.line() == "up"
    world.kill()
    os.write(program.stdin, b"go\n")
    assert program.line().startswith("held ")
    world.up()


def test_a_member_cannot_remove_its_own_mark(world: HostileWorld, mallory: User) -> None:
    script = (
        "import ctypes, resource\n"
        "for namespace in (0, 0x10000000):\n"
        "    ctypes.CDLL(None).unshare(namespace)\n"
        "    try: resource.setrlimit(10, (-1, -1)); print('raised', flush=True)\n"
        "    except ValueError: print('kept', flush=True)\n"
    )
    member = mallory.runs("/usr/bin/env", "python3", "-c", script, **_SMALL)
    assert [member.line(), member.line()] == ["kept", "kept"]


MARK = "markedname"
_MARKED_MIB = 1237
_MARKED_BYTES = struct.pack("<Q", _MARKED_MIB << 20)
_READ_MAX, _FILES_MAX = 1 << 20, 200_000
# Directories that every user reads, and those of the tests themselves.
_PUBLIC = ("/sys/fs/cgroup", "/run", "/dev/shm", "/sys/class/net", "/var/run/cdi", "/etc/cdi", "/var/lib/calabash")
_OF_A_PROCESS = ("cmdline", "comm", "cgroup", "environ", "limits", "maps", "mountinfo", "status", "net/unix")


def _readable(roots: list[str], left_out: list[str], own: list[int]) -> Iterator[tuple[str, bytes]]:
    """Yield every name and content that this user reads: below the directories, and of all processes but ``own``."""
    for root in roots:
        for directory, names, files in os.walk(root):
            if directory.startswith(tuple(left_out)):
                names.clear()
                continue
            for name in (*names, *files):
                yield f"{directory}/{name}", name.encode()
            for name in files:
                with (
                    contextlib.suppress(OSError),
                    open(f"{directory}/{name}", "rb", buffering=0, opener=_at_once) as file,
                ):
                    yield f"{directory}/{name}", file.read(_READ_MAX) or b""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in _OF_A_PROCESS:
            if int(pid) not in own or name == "cgroup":
                with contextlib.suppress(OSError):
                    yield f"/proc/{pid}/{name}", Path(f"/proc/{pid}/{name}").read_bytes()


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _found_by_others(roots: list[str], left_out: list[str], own: list[int], secrets: list[str]) -> list[str]:
    """Return the places where this user reads a name or a limit of another user."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    roots = [*roots, *(path for path in mounted if path.startswith(roots[0]) and not path.startswith(tuple(left_out)))]
    wanted = [*(secret.encode() for secret in secrets), _MARKED_BYTES]
    pages = itertools.islice(_readable(roots, left_out, own), _FILES_MAX)
    return sorted({f"{path}: {word!r}" for path, content in pages for word in wanted if word in content})


def test_other_users_read_neither_names_nor_limits_of_a_tenant(make_world: Callable[..., HostileWorld]) -> None:
    """The tenant uses its secret name for everything that it can name, in each mode that has files, sockets or processes."""
    world = make_world("2xA100-40GB")
    mallory, eve = world.user(), world.user()
    world.client.put(f"/v1/tenants/{MARK}t", {"users": [str(mallory.uid)]})
    world.client.put(f"/v1/tenants/{MARK}t/projects/{MARK}p", {})
    named: dict[str, Any] = {"tenant": f"{MARK}t", "project": f"{MARK}p", "gang": f"{MARK}g", "memory_mib": _MARKED_MIB}
    marked = [
        mallory.runs("/bin/cat", cores=10, **named),
        mallory.runs("/bin/cat", cores=10, isolation="brokered", **named),
        mallory.runs("/bin/cat", mode="mps", cores=10, **named),
    ]
    held: list[dict[str, Any]] = until(
        lambda: len(found := [a for a in world.held_by(mallory) if a["state"] == "running"]) == len(marked) and found,
        what="all programs to run",
    )
    assert {a["mode"] for a in held} == {"vgpu", "brokered", "mps"}
    secrets = [MARK, *(a["id"] for a in held)]
    roots = [str(world.home), *_PUBLIC]
    left_out = [str(world.home / "sim")]  # stands for hardware, which every user reads
    own = [os.getpid(), *mallory.processes()]  # the kernel shows commands; their words are the tenant's own
    root = User(0, world.home)
    seen_by_root = " ".join(root.does(_found_by_others, roots, left_out, [], secrets))
    assert all(repr(word)[2:-1] in seen_by_root for word in (MARK.encode(), _MARKED_BYTES)), "the search finds nothing"
    assert eve.does(_found_by_others, roots, left_out, own, secrets) == []
    slot = world.slot_of(marked[0])
    assert eve.does(_may_list, str(slot)) == []
    assert mallory.does(_may_list, str(slot)) == ["limits", "usage"]


def _may_list(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
