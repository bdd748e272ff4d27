"""What a process gives up for good before it speaks with strangers."""

from __future__ import annotations

import ctypes
import os
import resource

from calabash.adapters.host.capabilities import close_memory

_PR_SET_NO_NEW_PRIVS = 38


def give_up(user: int) -> None:
    """Become ``user`` and nobody else, where that is not 0; never gain rights again, and leave no memory in a core file
    or to other processes of that user.

    Raises OSError when the kernel refuses, and then nothing may be served.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every visitor is a connection
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    close_memory()
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not let a process give up new privileges")
