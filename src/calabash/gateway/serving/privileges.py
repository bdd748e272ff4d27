"""Drop the privileges of the gateway process before it serves clients."""

from __future__ import annotations

import ctypes
import os
import resource

from calabash.adapters.host.capabilities import close_memory

_PR_SET_NO_NEW_PRIVS = 38


def drop_privileges(user: int) -> None:
    """Switch to ``user`` unless it is 0, and make it impossible to gain privileges or to read the process's memory.

    Also raises the descriptor limit and disables core files.

    Args:
        user: user and group ID; 0 keeps the present user.

    Raises:
        OSError: if the kernel refuses a step; the process must not serve clients then.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection takes a descriptor
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    close_memory()
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refuses no_new_privs")
