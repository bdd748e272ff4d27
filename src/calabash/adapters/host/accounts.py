"""Change this process to an account of the machine: its user, its groups, and a clean environment."""

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
    """Entry of the passwd database."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str


def account_of(uid: int) -> LocalAccount:
    """Return the account of a user ID. Raises CalabashError(NOT_FOUND) if no account has it."""
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
    """Return the environment of a login of the account, without any variable of this process."""
    return {
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell or "/bin/sh",
        "PATH": PATH,
        "LANG": "C.UTF-8",
    }


def become_account(account: LocalAccount) -> None:
    """Change user and groups of this process to those of the account, irrevocably.

    Programs that this process starts cannot gain other rights. If this process has the account's user already, it keeps
    its present groups.

    Raises CalabashError(NOT_PERMITTED) if the kernel refuses, and for root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise _refused(account, OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
    try:
        if os.getuid() != account.uid or os.geteuid() != account.uid:
            os.initgroups(account.name, account.gid)
            os.setresgid(account.gid, account.gid, account.gid)
            os.setresuid(account.uid, account.uid, account.uid)
            close_memory()  # protected until it executes the program
    except OSError as error:
        raise _refused(account, error) from None
    if os.getresuid() != (account.uid,) * 3 or account.uid == 0:
        raise _refused(account, PermissionError(1, "it would have rights of another user"))


def _refused(account: LocalAccount, error: OSError) -> CalabashError:
    return CalabashError(
        f"cannot become account {account.name}: {error.strerror}",
        reason=Reason.NOT_PERMITTED,
        hint="only a pool that runs as root can run programs as other users",
    )
