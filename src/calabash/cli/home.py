"""Where this user's pool lives, and the connection to it."""

from __future__ import annotations

import os

from calabash.model.errors import CalabashError

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from pathlib import Path

    from calabash.seams.pool.client import ApiClient
    from calabash.seams.pool.far import TokenStore

SERVER_VARIABLE = "CALABASH_SERVER"


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


def client() -> ApiClient:
    """The pool of ``--server``, else that of this home; calls raise CalabashError(POOL_DOWN) when nobody answers."""
    url = server_url()
    if url:
        from calabash.seams.pool.far import ServerClient, checked_url  # noqa: PLC0415

        place = checked_url(url)
        return ServerClient(place, token_store().token(place))
    from calabash.seams.pool.client import PoolClient  # noqa: PLC0415

    return PoolClient(directory())


def server_url() -> str:
    """The pool elsewhere that is meant, empty for that of this machine."""
    return os.environ.get(SERVER_VARIABLE, "")


def token_store() -> TokenStore:
    """Where this user's tokens for pools elsewhere are kept."""
    from calabash.seams.pool.far import TokenStore  # noqa: PLC0415

    configuration = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return TokenStore(os.path.join(configuration, "calabash", "token"))
