"""Where this user's pool lives, and the connection to it."""

from __future__ import annotations

import os

from calabash.model.errors import CalabashError

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from pathlib import Path

    from calabash.seams.pool.client import PoolClient


def directory() -> str:
    """``CALABASH_HOME``, else /var/lib/calabash for root and ~/.local/share/calabash for others; absolute.

    Raises BAD_REQUEST when the user has no home directory to take it from.
    """
    given = os.environ.get("CALABASH_HOME", "")
    if not given and os.geteuid() == 0:
        return "/var/lib/calabash"
    wanted = given or "~/.local/share/calabash"
    found = os.path.expanduser(wanted)
    if found.startswith("~"):
        raise CalabashError(
            f"the home directory in {wanted} is not known",
            hint="set CALABASH_HOME to the absolute path of a directory of yours",
        )
    return os.path.join(os.getcwd(), found)


def home() -> Path:
    """As :func:`directory`."""
    from pathlib import Path  # noqa: PLC0415

    return Path(directory())


def client() -> PoolClient:
    """The pool of this home; calls raise CalabashError(POOL_DOWN) when nobody answers."""
    from calabash.seams.pool.client import PoolClient  # noqa: PLC0415

    return PoolClient(directory())
