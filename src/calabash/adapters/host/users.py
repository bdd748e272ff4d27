"""Groups of users from the host's name service."""

from __future__ import annotations

import grp
import os
import pwd

from calabash.adapters.host.failures import require_descriptor


def user_groups(uid: int) -> frozenset[str]:
    """Return the names of all groups of a user; numbers for groups without a name."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        require_descriptor()
        return frozenset()
    found = frozenset(_group_name(gid) for gid in os.getgrouplist(entry.pw_name, entry.pw_gid))
    require_descriptor()
    return found


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
