"""As whom workers run: users that nobody else is, so that a worker can do nothing to anybody else's."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection

from calabash.agent.modes.protocol import WorkerUsers
from calabash.model.errors import CalabashError, Reason
from calabash.seams.host.failures import require_descriptor

OURSELVES = -1


class FreeUsers:
    """Those of a range, one after the other, so that nobody is soon again whom somebody else has just been. None: there are
    no workers."""

    def __init__(self, users: WorkerUsers | None) -> None:
        self._users = users
        self._last = users.first - 1 if users is not None else 0

    def one(self, taken: Collection[int]) -> int:
        """One that is not taken; OURSELVES for a pool that cannot become others. Raises NO_CAPACITY."""
        users = self._users
        if users is None or os.geteuid() != 0:
            return OURSELVES
        count = users.last - users.first + 1
        for step in range(1, count + 1):
            user = users.first + (self._last - users.first + step) % count
            if user not in taken and not _has_a_name(user):
                self._last = user
                return user
        raise CalabashError(
            f"all {count} users for workers are taken",
            reason=Reason.NO_CAPACITY,
            hint="give more of them in pool.toml, [workers]",
        )


def _has_a_name(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        require_descriptor()
        return False
    return True
