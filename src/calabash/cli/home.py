"""Where this user's pool lives, and the connection to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calabash.standalone.client import PoolClient


def home() -> Path:
    """``CALABASH_HOME``, else /var/lib/calabash for root and ~/.local/share/calabash for others."""
    given = os.environ.get("CALABASH_HOME")
    if given:
        return Path(given).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/calabash")
    return Path.home() / ".local" / "share" / "calabash"


def client() -> PoolClient:
    """The pool of :func:`home`; calls raise CalabashError(POOL_DOWN) when nobody answers."""
    from calabash.standalone.client import PoolClient  # noqa: PLC0415

    return PoolClient(home())
