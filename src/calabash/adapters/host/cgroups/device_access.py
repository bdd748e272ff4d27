"""Prevent the processes of a control group from opening character devices.

For version 2, a program of type ``BPF_PROG_TYPE_CGROUP_DEVICE`` is attached to the group, beside those of the container
runtime; the kernel allows only what all programs of a group and its parents allow. The program stays as long as the
group, also when this process ends. Version 1 has the file ``devices.deny``.

Numbers of commands, types and flags, and the layout of ``struct bpf_cgroup_dev_ctx`` (access and type, major, minor; 32
bits each) are from the kernel's ``include/uapi/linux/bpf.h``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.mounts import Mounted, mounts

PROGRAM_NAME = b"calabash_dev"  # at most 15 bytes
MINORS_V1 = range(256)  # denied one by one if some minors of a major stay allowed
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 5, 8, 13, 15, 16
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
_CHARACTER = 2
_PROGRAMS_MAX = 64
_ATTRIBUTE_BYTES = 144
_INFO_NAME = slice(64, 80)  # ``name`` in ``struct bpf_prog_info``
_MAJOR = re.compile(r"^\s*(\d+)\s+(\S+)\s*$", re.MULTILINE)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class DeviceHierarchy:
    """Mounted control group hierarchy that controls devices; ``version`` is the version of control groups, 1 or 2."""

    directory: Path
    version: int


def find_device_hierarchy(mounted: list[Mounted] | None = None) -> DeviceHierarchy | None:
    """Return the hierarchy that controls devices: that of the ``devices`` controller (version 1) if it is mounted.

    Otherwise return that of version 2; None if neither is mounted.

    Of several mounts of one hierarchy the outermost is returned.
    """
    best: dict[int, tuple[int, Path]] = {}
    for entry in mounts() if mounted is None else mounted:
        outwards = entry.root.count("/..")
        if outwards and entry.root != "/.." * outwards:
            continue
        devices = entry.kind == "cgroup" and "devices" in entry.directory.name.split(",")
        version = 1 if devices else 2 if entry.kind == "cgroup2" else 0
        if version and outwards > best.get(version, (-1, Path()))[0]:
            best[version] = (outwards, entry.directory)
    return next((DeviceHierarchy(best[version][1], version) for version in (1, 2) if version in best), None)


def majors_of(names: Collection[str], text: str | None = None) -> dict[str, int]:
    """Return the major numbers of the loaded character device drivers with these names.

    Args:
        text: content of ``/proc/devices``; None to read it.
    """
    if text is None:
        text = Path("/proc/devices").read_text()
    characters = text.partition("Block devices:")[0]
    return {match[2]: int(match[1]) for match in _MAJOR.finditer(characters) if match[2] in names}


def deny_devices(hierarchy: DeviceHierarchy, group: Path, denied: Mapping[int, Collection[int]]) -> None:
    """Prevent the processes of a group and of its nested groups from opening some character devices.

    There is no way to permit a denied device again.

    Args:
        hierarchy: hierarchy of the group.
        group: directory of the group.
        denied: for each major number that is denied, the minor numbers that stay allowed.

    Raises:
        OSError: the group is gone, or the kernel refuses the rule.
    """
    if hierarchy.version == 1:
        _deny_by_file(group, denied)
    else:
        _deny_by_program(group, denied)


def _deny_by_file(group: Path, denied: Mapping[int, Collection[int]]) -> None:
    for major, allowed in denied.items():
        rules = [f"c {major}:{minor} rwm" for minor in MINORS_V1 if minor not in allowed]
        for rule in rules if allowed else [f"c {major}:* rwm"]:
            descriptor = os.open(group / "devices.deny", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, rule.encode())  # one rule a write
            finally:
                os.close(descriptor)


def _deny_by_program(group: Path, denied: Mapping[int, Collection[int]]) -> None:
    target = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if PROGRAM_NAME in _attached(target):
            return
        program = _load(_instructions(denied))
        try:
            _bpf(_PROG_ATTACH, struct.pack("<IIII", target, program, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI), str(group))
        finally:
            os.close(program)
    finally:
        os.close(target)


def _instructions(denied: Mapping[int, Collection[int]]) -> bytes:
    """Return the BPF program, which returns 0 (deny) for a denied character device and 1 for all others."""

    def instruction(code: int, registers: int, offset: int, value: int) -> bytes:
        return struct.pack("<BBhi", code, registers, offset, value)

    load, jump_equal, jump_unequal, move, end = 0x61, 0x15, 0x55, 0xB7, 0x95
    allow = instruction(move, 0x00, 0, 1) + instruction(end, 0, 0, 0)
    deny = instruction(move, 0x00, 0, 0) + instruction(end, 0, 0, 0)
    # r2 = type of the device, r3 = major, r4 = minor; r1 is the context
    program = instruction(load, 0x12, 0, 0) + instruction(0x57, 0x02, 0, 0xFFFF)
    program += instruction(load, 0x13, 4, 0) + instruction(load, 0x14, 8, 0)
    program += instruction(jump_equal, 0x02, 2, _CHARACTER) + allow
    for major, allowed in sorted(denied.items()):
        checks = b"".join(instruction(jump_unequal, 0x04, 2, minor) + allow for minor in sorted(allowed))
        body = checks + deny
        program += instruction(jump_unequal, 0x03, len(body) // 8, major) + body
    return program + allow


def _load(instructions: bytes) -> int:
    """Load the program; return its descriptor."""
    code, licence = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"Apache-2.0")
    attribute = struct.pack(
        "<IIQQIIQII16s",
        _TYPE_CGROUP_DEVICE,
        len(instructions) // 8,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
        PROGRAM_NAME,
    )
    return _bpf(_PROG_LOAD, attribute, "a program for devices")


def _attached(target: int) -> set[bytes]:
    """Return the names of the BPF programs for devices that are attached to a group, not to its parents.

    Args:
        target: descriptor of the group's directory.
    """
    ids = (ctypes.c_uint32 * _PROGRAMS_MAX)()
    attribute = ctypes.create_string_buffer(
        struct.pack("<IIIIQI", target, _ATTACH_CGROUP_DEVICE, 0, 0, ctypes.addressof(ids), _PROGRAMS_MAX),
        _ATTRIBUTE_BYTES,
    )
    _call(_PROG_QUERY, attribute, "programs of a control group")
    (count,) = struct.unpack_from("<I", attribute, 24)
    return {_name_of(number) for number in ids[: min(count, _PROGRAMS_MAX)]}


def _name_of(number: int) -> bytes:
    try:
        program = _bpf(_PROG_GET_FD_BY_ID, struct.pack("<III", number, 0, 0), "a program")
    except OSError as error:
        if error.errno == errno.ENOENT:  # it has just been detached
            return b""
        raise
    try:
        info = ctypes.create_string_buffer(256)
        _bpf(_OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", program, len(info), ctypes.addressof(info)), "a program")
        return info.raw[_INFO_NAME].rstrip(b"\0")
    finally:
        os.close(program)


def _bpf(command: int, attribute: bytes, what: str) -> int:
    return _call(command, ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES), what)


def _call(command: int, attribute: ctypes.Array[ctypes.c_char], what: str) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), what)
    answer = int(_libc.syscall(number, command, ctypes.byref(attribute), _ATTRIBUTE_BYTES))
    if answer < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed), what)
    return answer
