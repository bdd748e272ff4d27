"""First steps of a job's process: switch to the account, request a slice from the pool, execute the program.

The process requests its slice over the pool's Unix socket and is authenticated by its peer credentials, so a job has the
permissions of ``calabash run`` of that account. If the pool goes down meanwhile, the request is repeated for ``POOL_AWAY_S``
seconds.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, NoReturn

import msgspec

from calabash.adapters.host.accounts import LocalAccount, become_account, clean_environment
from calabash.adapters.pool.client import PoolClient
from calabash.adapters.pool.entering import environment_with, hold_lease, require_loadable
from calabash.adapters.pool.entry import run_behind
from calabash.api import endpoints
from calabash.api.jobs import JobOrder
from calabash.model.errors import CalabashError, Reason

AGAIN_S = 1.0
POOL_AWAY_S = 600.0
_ANSWER_S = 30.0
NOT_STARTED = 125
SHOWN_WORDS_MAX, SHOWN_CHARACTERS_MAX = 64, 512  # limits of the command that the pool lists


class JobStart(msgspec.Struct, kw_only=True, frozen=True):
    """Start report of a job's process to its keeper: its allocation, or the error."""

    allocation: str = ""
    reason: str = ""
    message: str = ""
    hint: str = ""


def become_program(order: JobOrder, *, home: str, account: LocalAccount, told: int) -> NoReturn:
    """Execute the program of a job; never returns.

    Args:
        told: descriptor to which one ``JobStart`` is written; closed when the program runs.
    """
    try:
        _become(order, home=home, account=account, told=told)
    except CalabashError as error:
        said = JobStart(reason=str(error.reason), message=error.message, hint=error.hint)
    except OSError as error:
        said = JobStart(reason=str(Reason.CONFLICT), message=f"it cannot be started: {error.strerror or error}")
    except BaseException as error:
        said = JobStart(reason=str(Reason.CONFLICT), message=f"it cannot be started: {type(error).__name__}")
    os.write(told, msgspec.json.encode(said))
    os._exit(NOT_STARTED)


def _become(order: JobOrder, *, home: str, account: LocalAccount, told: int) -> None:
    become_account(account)
    os.umask(0o022)
    environment = clean_environment(account)
    _enter_directory(order.directory, account)
    pool = PoolClient(home)
    granted = _granted(pool, order)
    require_loadable(granted["environment"])
    if granted["lease"] and not granted["door"]:
        hold_lease(granted["lease"])
        pool.send(endpoints.REPORT_START, granted["id"], body={"pid": os.getpid()})
    os.write(told, msgspec.json.encode(JobStart(allocation=granted["id"])))
    environment = environment_with(environment, granted["environment"], brokered=bool(granted["worker_socket"]))
    if granted["door"]:
        os.close(told)
        os._exit(run_behind(granted["door"], order.command, environment))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program would inherit that
    try:
        os.execvpe(order.command[0], order.command, environment)  # noqa: S606 - what was asked for, and no shell
    except (FileNotFoundError, NotADirectoryError):
        os.write(2, f"{order.command[0]}: not found\n".encode())
        os._exit(127)
    except OSError as error:
        os.write(2, f"{order.command[0]}: {error.strerror}\n".encode())
        os._exit(126)


def _granted(pool: PoolClient, order: JobOrder) -> dict[str, Any]:
    shown = [word[:SHOWN_CHARACTERS_MAX] for word in order.command[:SHOWN_WORDS_MAX]]
    body = msgspec.to_builtins(order) | {"enter": True, "command": shown}
    del body["directory"]
    away_since_s: float | None = None
    while True:
        try:
            found: dict[str, Any] = pool.send(endpoints.ALLOCATE, body=body, timeout_s=order.wait_s + _ANSWER_S)
            return found
        except CalabashError as error:
            now_s = time.monotonic()
            away_since_s = now_s if away_since_s is None or error.reason is not Reason.POOL_DOWN else away_since_s
            if error.reason is not Reason.POOL_DOWN or now_s - away_since_s > POOL_AWAY_S:
                raise
        time.sleep(AGAIN_S)


def _enter_directory(directory: str, account: LocalAccount) -> None:
    """Change to the directory, or to the account's home if ``directory`` is "".

    Raises BAD_REQUEST if the account may not enter the directory.
    """
    try:
        os.chdir(directory or account.home)
    except (OSError, ValueError) as error:
        if not directory:
            os.chdir("/")  # an account without a home begins at the root, as a login does
            return
        raise CalabashError(
            f"directory {directory}: {getattr(error, 'strerror', None) or error}",
            reason=Reason.BAD_REQUEST,
            hint=f"it must be one that {account.name} may enter",
        ) from None
