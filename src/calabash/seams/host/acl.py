"""Access for one more user to a file that stays somebody else's (POSIX access control lists)."""

from __future__ import annotations

import os
import struct

_XATTR = "system.posix_acl_access"
_VERSION = 2
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF
_READ_WRITE = 6


def share_with(descriptor: int, uid: int) -> None:
    """The owner and this user may read and write, nobody else may do anything. Raises OSError.

    The user can neither change the mode nor take a lease: those are the owner's.
    """
    entries = (
        (_OWNER, _READ_WRITE, _NOBODY),
        (_USER, _READ_WRITE, uid),
        (_GROUP, 0, _NOBODY),
        (_MASK, _READ_WRITE, _NOBODY),
        (_OTHERS, 0, _NOBODY),
    )
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(descriptor, _XATTR, struct.pack("<I", _VERSION) + packed)
