"""``calabash run --remote``: obtain a lease of a server, and replace this process by the program with the client library.

As without ``--remote``, the program takes over this process: exit codes, signals and the terminal are its own. A background
process renews the lease (:mod:`calabash.broker.client.lease_keeper`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from calabash.adapters.gpu.library import shim_library
from calabash.api import lease_endpoints
from calabash.broker.client.lease_keeper import keep_for_this_process
from calabash.broker.client.multi_server import MultiServerRequest, release_all
from calabash.broker.client.server_choice import rank
from calabash.broker.filters import parse_filters
from calabash.broker.messages import LeaseOrder, ServerView
from calabash.cli.failure import print_on_stderr
from calabash.cli.run import options as run_options
from calabash.cli.run.become import become_with_worker
from calabash.cli.servers import account, views
from calabash.model.errors import CalabashError, Reason

if TYPE_CHECKING:
    from pathlib import Path

    from calabash.broker.client.connection import RemoteServerClient

_ANSWER_S = 30.0
_TAKEN = {"gpus", "memory_mib", "cores", "models", "run_time_s", "wait_s", "command"}
_NEVER = {
    Reason.TOO_LARGE,
    Reason.SELECTOR_MISMATCH,
    Reason.DRAINED,
}  # refusals that waiting at this server does not change
_NO_ROOM = {
    *_NEVER,
    Reason.NO_CAPACITY,
    Reason.NO_MEMORY,
    Reason.NO_CORES,
    Reason.NO_DEVICES,
    Reason.MODE_CONFLICT,
    Reason.UNHEALTHY,
}
_PASSES = (_NO_ROOM - _NEVER) | {Reason.QUEUE_OVER_LIMIT}


def start_remote(
    given: Mapping[str, Sequence[str]],
    command: Sequence[str],
    *,
    filters: Sequence[str],
    servers: Sequence[str],
    lease: str,
    span: bool,
    quiet: bool = False,
) -> NoReturn:
    """Replace this process by ``command`` on devices of another machine.

    Args:
        given: values of the options of ``calabash run``, by flag.
        filters: conditions on the devices, as the user entered them.
        servers: names of the servers to ask; empty: all that the user has added.
        lease: IDs of reservations to use, separated by commas; "" to request new leases.
        span: True if devices of several servers may be used together.
        quiet: False to print why the request waits.

    Raises:
        CalabashError: if no server has the devices within the time to wait.
    """
    if lease:
        held = [_reserved(given, one, servers, filters) for one in lease.split(",")]
    else:
        held = write_keys(
            leases({**order_of(given, command), "filters": list(filters)}, servers, span=span, quiet=quiet)
        )
    for server, lease_id, grace_s in held:
        keep_for_this_process(account(), server, lease_id, grace_s, own=not lease)
    become_with_worker(command, _environment([account().key_file(lease_id) for _, lease_id, _ in held]))


def write_keys(granted: Sequence[tuple[RemoteServerClient, Any]]) -> list[tuple[RemoteServerClient, str, float]]:
    """Store the keys of new leases; return for each lease its server, its ID and its grace period in seconds.

    If a key cannot be stored, release all leases.
    """
    try:
        for server, grant in granted:
            account().write_key(server, grant["id"], grant["key"], grant["grace_s"])
    except BaseException:
        release_all(granted)
        for _, grant in granted:
            account().delete_key(grant["id"])
        raise
    for _, grant in granted:
        for text in grant["warnings"]:
            print_on_stderr(f"warning: {text}")
    return [(server, grant["id"], grant["grace_s"]) for server, grant in granted]


def _environment(keys: Sequence[Path]) -> dict[str, str]:
    """Return the environment that makes a program load the client library with the leases of these key files.

    For several leases, another library is loaded, which joins the sessions of all leases.
    """
    libraries = shim_library().parent.parent / "remote"
    where = [f"file:{path}" for path in keys]
    if len(where) == 1:
        return {"LD_LIBRARY_PATH": str(libraries), "CALABASH_REMOTE": where[0]}
    return {"LD_LIBRARY_PATH": str(libraries / "span"), "CALABASH_REMOTE": "span:" + "\n".join(where)}


def leases(
    order: Mapping[str, Any], names: Sequence[str], *, span: bool, quiet: bool = False
) -> Sequence[tuple[RemoteServerClient, Any]]:
    """Request leases from servers; return each lease with its server: one lease, or with ``span`` as few as needed.

    If devices are not free while leases of the user's own ended runs are being released, the request is made once more
    afterwards. Unless ``quiet``, one line on standard error says that the request waits, and why.

    Args:
        order: the requested devices, as the options describe them.
        names: names of the servers to ask; empty: all that the user has added.
    """
    ended, waits = account().ended_runs(), _Waits(quiet=quiet)
    try:
        return _leases(order, names, waits, span=span)
    except CalabashError as error:
        ended |= account().ended_runs()
        if not ended or error.reason not in _PASSES:
            raise
    account().wait_until_released(ended)
    return _leases(order, names, waits, span=span)


class _Waits:
    """Waits for devices. Prints once, on standard error, that a request for leases waits and why."""

    def __init__(self, *, quiet: bool) -> None:
        self._said = quiet

    def now_s(self) -> float:
        return time.monotonic()

    def wait(self, refusal: CalabashError, seconds: float) -> None:
        self.report(refusal)
        time.sleep(seconds)

    def report(self, refusal: CalabashError) -> None:
        if not self._said:
            self._said = True
            print_on_stderr(f"waiting for devices: {refusal.message}")


def _leases(
    order: Mapping[str, Any], names: Sequence[str], waits: _Waits, *, span: bool
) -> Sequence[tuple[RemoteServerClient, Any]]:
    if not span:
        return [_leased(order, names, waits)]
    wanted = msgspec.convert(order, LeaseOrder)
    parse_filters(wanted.filters)
    servers = account().servers(*names)

    def read_servers() -> list[tuple[RemoteServerClient, ServerView]]:
        return [(server, msgspec.convert(view, ServerView)) for server, view in views(servers)]

    request = MultiServerRequest(read_servers=read_servers, retryable=frozenset(_NO_ROOM | _PASSES), waits=waits)
    return request.acquire(wanted)


def _leased(order: Mapping[str, Any], names: Sequence[str], waits: _Waits) -> tuple[RemoteServerClient, Any]:
    """Return a lease of the server that fits best, and that server.

    If no server has room and the request may wait, wait for the server that fits best.

    Raises:
        CalabashError: the first refusal if no server grants the lease.
    """
    wanted = msgspec.convert(order, LeaseOrder)
    parse_filters(wanted.filters)  # reports invalid filters before servers are asked
    servers = account().servers(*names)
    if len(servers) > 1:
        found = views(servers)
        ranked = rank([msgspec.convert(view, ServerView) for _, view in found], wanted)
        servers = [found[number][0] for number in ranked]
    failure: CalabashError | None = None
    for server in servers:
        try:
            return server, _asked(server, order, 0.0)
        except CalabashError as error:
            if error.reason not in _NO_ROOM:
                raise
            failure = failure or error
    if wanted.wait_s and failure is not None and failure.reason not in _NEVER:
        waits.report(failure)
        return servers[0], _asked(servers[0], order, wanted.wait_s)
    assert failure is not None
    if failure.reason in _NEVER:
        raise failure
    raise CalabashError(
        failure.message,
        reason=failure.reason,
        hint="wait for free devices with --wait 10m, or request fewer; `calabash remote list` shows free devices",
    )


def _asked(server: RemoteServerClient, order: Mapping[str, Any], wait_s: float) -> Any:
    return server.send(lease_endpoints.REQUEST_LEASE, body={**order, "wait_s": wait_s}, timeout_s=wait_s + _ANSWER_S)


def order_of(given: Mapping[str, Sequence[str]], command: Sequence[str]) -> dict[str, Any]:
    """Return the order that the options describe. Raises BAD_REQUEST for an option that --remote does not support."""
    body = run_options.request(given, command)
    for option in run_options.OPTIONS:
        if given.get(option.flag) and option.field not in _TAKEN:
            raise CalabashError(
                f"{option.flag} cannot be used with --remote",
                hint="sharing mode and account are determined by the server and its token",
            )
    return {name: value for name, value in body.items() if name in _TAKEN}


def _reserved(
    given: Mapping[str, Sequence[str]], lease: str, servers: Sequence[str], filters: Sequence[str]
) -> tuple[RemoteServerClient, str, float]:
    """Return the server of a reservation, the full ID of its lease, and the grace period for renewals in seconds.

    ``lease`` may be the beginning of the ID.
    """
    asked = [flag for flag, values in given.items() if values] + (["--filter"] if filters else [])
    if asked:
        raise CalabashError(f"{asked[0]} cannot be used with --lease", hint="the reservation determines the devices")
    refusal: CalabashError | None = None
    for server in account().servers(*servers):
        try:
            found = server.send(lease_endpoints.LIST_LEASES)["items"]
        except CalabashError as error:
            refusal = refusal or error
            continue
        meant = [item for item in found if item["reserved"] and item["id"].startswith(lease)]
        if len(meant) == 1:
            renewed = server.send(lease_endpoints.RENEW_LEASE, meant[0]["id"])
            return server, meant[0]["id"], min(60.0, renewed["ends_in_s"])
    raise refusal or CalabashError(
        f"no reservation {lease[:40]!r}",
        reason=Reason.NOT_FOUND,
        hint="list reservations with `calabash remote sessions`",
    )
