"""Select the account of the machine that a user's jobs run as."""

from __future__ import annotations

import os

from calabash.adapters.host.accounts import LocalAccount, account_of
from calabash.adapters.host.processes import Peer
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Principal
from calabash.platform.access.permission import Permission
from calabash.pool.settings import JobSettings


def account_for_jobs(who: Principal, *, permission: Permission, settings: JobSettings) -> LocalAccount:
    """Return the account that jobs of a user run as. Raises NOT_PERMITTED if the pool may not run jobs as that account."""
    if not settings.enabled:
        raise _refused("this pool runs no jobs", "its owner has switched them off: [jobs] enabled in pool.toml")
    account = account_of(who.uid)
    mine = os.geteuid()
    if account.uid == 0:
        raise _refused("a job never runs as root", "log in as a user with an account of its own, or use `calabash run`")
    if mine not in {0, account.uid}:
        raise _refused(f"the pool may not switch to account {account.name}", "only a pool of root runs others' jobs")
    if account.uid < settings.least_user and account.uid != mine:
        raise _refused(
            f"account {account.name} ({account.uid}) is one of the system's",
            f"jobs run as accounts from {settings.least_user} on: [jobs] least_user in pool.toml",
        )
    there = permission.of_peer(Peer(pid=0, uid=account.uid, gid=account.gid))
    if there.user != who.user:
        raise _refused(
            f"programs of account {account.name} are user {there.user}'s, not {who.user}'s",
            "ask an administrator for an account of your own: calabash user set NAME --login ACCOUNT",
        )
    return account


def _refused(message: str, hint: str) -> CalabashError:
    return CalabashError(message, reason=Reason.NOT_PERMITTED, hint=hint)
