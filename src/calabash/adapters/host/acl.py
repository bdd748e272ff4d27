"""POSIX access control lists that give one further user access to a file of another owner."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

_XATTR = "system.posix_acl_access"
_VERSION = 2
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF
READ, READ_WRITE, SEARCH = 4, 6, 1
_GET_FLAGS, _SET_FLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10
_MODE = 0o7777


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Mode and access control list of a file; ``acl`` is in the kernel's format, empty if there is none."""

    mode: int
    acl: bytes = b""


def share_with(descriptor: int, uid: int, *, owner: int = READ_WRITE, user: int = READ_WRITE) -> None:
    """Give rights on an open file to its owner and to one user, and none to all others. Raises OSError.

    The user can neither change the mode of the file nor take a lease on it; only the owner can.

    Args:
        descriptor: the open file.
        uid: the user.
        owner, user: rights of the owner and of the user, as permission bits.
    """
    os.setxattr(descriptor, _XATTR, _list_for(uid, owner=owner, user=user))


def make_immutable(path: Path) -> None:
    """Set the immutable attribute of a file or directory. Raises OSError.

    Only a process with CAP_LINUX_IMMUTABLE in the initial user namespace may do so.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        flags = bytearray(8)  # the kernel reads and writes the first four bytes
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        wanted = struct.pack("=Q", struct.unpack_from("=I", flags)[0] | _IMMUTABLE)
        fcntl.ioctl(descriptor, _SET_FLAGS, wanted)
    finally:
        os.close(descriptor)


def access_of(path: str | Path) -> Access:
    """Return mode and access control list of a file. Raises OSError."""
    mode = os.stat(path, follow_symlinks=False).st_mode & _MODE
    try:
        return Access(mode=mode, acl=os.getxattr(path, _XATTR, follow_symlinks=False))
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.EOPNOTSUPP}:
            raise
        return Access(mode=mode)


def access_for(uid: int, before: Access) -> Access:
    """Return the access that lets the owner and this user read and write, and no other user.

    Args:
        uid: the user.
        before: present access of the file; its set-ID and sticky bits are kept.
    """
    special = before.mode & 0o7000
    if uid == 0:
        return Access(mode=special | 0o600)
    return Access(mode=special | 0o660, acl=_list_for(uid))  # the group's bits show the mask of the list


def set_access(path: str | Path, access: Access) -> None:
    """Set mode and access control list of a file. Raises OSError.

    At every moment the file permits at most what the old and the new access permit together.
    """
    if access.acl:
        os.setxattr(path, _XATTR, access.acl, follow_symlinks=False)
        return
    os.chmod(path, access.mode)  # first: while there is a list, the group's bits are only its mask
    with contextlib.suppress(OSError):  # there was none
        os.removexattr(path, _XATTR, follow_symlinks=False)


def _list_for(uid: int, *, owner: int = READ_WRITE, user: int = READ_WRITE) -> bytes:
    entries = (
        (_OWNER, owner, _NOBODY),
        (_USER, user, uid),
        (_GROUP, 0, _NOBODY),
        (_MASK, user, _NOBODY),
        (_OTHERS, 0, _NOBODY),
    )
    return struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
