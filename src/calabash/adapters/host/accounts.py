"""Becoming an account of this machine: its user, its groups, and an environment that has nothing of whoever started it."""

from __future__ import annotations

import ctypes
import os
import pwd
from dataclasses import dataclass

from calabash.adapters.host.capabilities import close_memory
from calabash.adapters.host.failures import require_descriptor
from calabash.model.errors import CalabashError, Reason

PATH = "/usr/local/bin:/usr/bin:/bin"
_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAccount:
    """An entry of the passwd database."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str


def account_of(uid: int) -> LocalAccount:
    """Raises NOT_FOUND for a number that no account has."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        require_descriptor()
        raise CalabashError(
            f"this machine has no account with number {uid}", reason=Reason.NOT_FOUND, hint="ask an administrator"
        ) from None
    return LocalAccount(
        name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, home=entry.pw_dir or "/", shell=entry.pw_shell
    )


def clean_environment(account: LocalAccount) -> dict[str, str]:
    """What a login would have, and nothing else."""
    return {
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell or "/bin/sh",
        "PATH": PATH,
        "LANG": "C.UTF-8",
    }


def become_account(account: LocalAccount) -> None:
    """Make this process the account's for good, with all of its groups; no program that it starts can have other rights.

    Raises CalabashError when the kernel does not let it. A process that is the account's already keeps its groups.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise _refused(account, OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
    try:
        if os.getuid() != account.uid or os.geteuid() != account.uid:
            os.initgroups(account.name, account.gid)
            os.setresgid(account.gid, account.gid, account.gid)
            os.setresuid(account.uid, account.uid, account.uid)
            close_memory()  # until it is the program, it is the product's
    except OSError as error:
        raise _refused(account, error) from None
    if os.getresuid() != (account.uid,) * 3 or account.uid == 0:
        raise _refused(account, PermissionError(1, "it would have rights of somebody else"))


def _refused(account: LocalAccount, error: OSError) -> CalabashError:
    return CalabashError(
        f"cannot become account {account.name}: {error.strerror}",
        reason=Reason.NOT_PERMITTED,
        hint="a pool of root can run programs as others, another one only as its own user",
    )
