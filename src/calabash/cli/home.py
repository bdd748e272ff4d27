"""Find the pool of this user, and create the client for it."""

from __future__ import annotations

import os

from calabash.model.errors import CalabashError, Reason

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from pathlib import Path

    from calabash.adapters.pool.client import ApiClient, PoolClient
    from calabash.adapters.pool.gateway_client import TokenStore

SERVER_VARIABLE = "CALABASH_SERVER"


def directory() -> str:
    """Return the absolute path of the pool's home.

    It is ``CALABASH_HOME``, else /var/lib/calabash for root and ~/.local/share/calabash for other users.

    Raises:
        CalabashError: BAD_REQUEST if the user has no home directory.
    """
    given = os.environ.get("CALABASH_HOME", "")
    if not given and os.geteuid() == 0:
        from calabash.adapters.pool.system import SYSTEM_HOME  # noqa: PLC0415

        return SYSTEM_HOME
    wanted = given or "~/.local/share/calabash"
    found = os.path.expanduser(wanted)
    if found.startswith("~"):
        raise CalabashError(
            f"the home directory of this user is not known, and {wanted} needs it",
            hint="set CALABASH_HOME to the absolute path of a directory that you own",
        )
    return os.path.join(os.getcwd(), found)


def home() -> Path:
    """Return the pool's home as a Path; see :func:`directory`."""
    from pathlib import Path  # noqa: PLC0415

    return Path(directory())


def client() -> ApiClient:
    """Return the client for the pool of ``--server``, else of this home, else of the system (:func:`uses_system_pool`).

    Its calls raise POOL_DOWN if no pool answers.

    Raises:
        CalabashError: NOT_PERMITTED for a system pool that a user other than root could have created.
    """
    url = server_url()
    if url:
        from calabash.adapters.pool.gateway_client import ServerClient, checked_url  # noqa: PLC0415

        place = checked_url(url)
        return ServerClient(place, token_store().token(place))
    if not uses_system_pool():
        return own_client()
    from calabash.adapters.pool.client import PoolClient, socket_path  # noqa: PLC0415
    from calabash.adapters.pool.system import SYSTEM_HOME, require_of_root  # noqa: PLC0415

    require_of_root(socket_path(SYSTEM_HOME))
    return PoolClient(
        SYSTEM_HOME,
        owner=0,
        down_hint="root starts this pool with `calabash up`; as another user you start a pool of your own",
    )


def own_client() -> PoolClient:
    """Return the client for the pool of this home, running or not, for commands that start it or use its files."""
    from calabash.adapters.pool.client import PoolClient  # noqa: PLC0415

    if _may_use_system_pool() and os.path.lexists(_system_socket()):
        hint = f"start it with `calabash up`, or use root's with CALABASH_HOME={os.path.dirname(_system_socket())}"
        return PoolClient(directory(), down_hint=hint)
    return PoolClient(directory())


def uses_system_pool() -> bool:
    """Return True if commands of this user go to the system pool, which root runs for all users of the machine.

    They do if the user has named no pool (``--server``, ``CALABASH_HOME``) and has none of its own, and root's pool exists.
    """
    if not _may_use_system_pool() or not os.path.lexists(_system_socket()):
        return False
    from calabash.adapters.pool.client import SOCKET_FILE  # noqa: PLC0415

    try:
        return not os.path.lexists(os.path.join(directory(), SOCKET_FILE))
    except CalabashError:  # a user without a home directory
        return True


def own_file(name: str) -> Path:
    """Return the path of a file in the home of this user's pool.

    Raises NOT_PERMITTED if commands go to the system pool and this home has no such file: root owns the system's home.
    """
    if uses_system_pool() and not os.path.lexists(os.path.join(directory(), name)):
        from calabash.adapters.pool.system import SYSTEM_HOME  # noqa: PLC0415

        raise CalabashError(
            f"this command uses {name} in the pool's home, and the home of the system pool, {SYSTEM_HOME}, belongs to root",
            reason=Reason.NOT_PERMITTED,
            hint="run it as root, or set CALABASH_HOME to the home of a pool of your own",
        )
    return home() / name


def _may_use_system_pool() -> bool:
    return os.geteuid() != 0 and not os.environ.get("CALABASH_HOME") and not server_url()


def _system_socket() -> str:
    from calabash.adapters.pool.client import SOCKET_FILE  # noqa: PLC0415
    from calabash.adapters.pool.system import SYSTEM_HOME  # noqa: PLC0415

    return os.path.join(SYSTEM_HOME, SOCKET_FILE)


def server_url() -> str:
    """Return the URL of the pool to use; "" for the pool of this machine."""
    return os.environ.get(SERVER_VARIABLE, "")


def require_this_machine(command: str, *, hint: str) -> None:
    """Raise an error if ``--server`` is given, for a command that runs on the pool's machine only."""
    if server_url():
        raise CalabashError(f"`calabash {command}` works on the pool's machine only, not with --server", hint=hint)


def token_store() -> TokenStore:
    """Return the store of this user's tokens for other pools."""
    from calabash.adapters.pool.gateway_client import TokenStore  # noqa: PLC0415

    configuration = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return TokenStore(os.path.join(configuration, "calabash", "token"))
