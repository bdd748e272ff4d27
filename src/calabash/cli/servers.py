"""Query all remote-device servers that this user has added, concurrently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from calabash.api import lease_endpoints
from calabash.cli.failure import print_on_stderr
from calabash.cli.home import home
from calabash.model.errors import CalabashError

if TYPE_CHECKING:
    from calabash.broker.client.account import RemoteAccount
    from calabash.broker.client.connection import RemoteServerClient

ASK_S = 10.0


def account() -> RemoteAccount:
    """Return the files with the servers that this user has added, and with the keys of leases."""
    from calabash.broker.client.account import RemoteAccount  # noqa: PLC0415

    return RemoteAccount(home() / "remote")


def every(
    servers: Sequence[RemoteServerClient], ask: Callable[[RemoteServerClient], Any]
) -> list[tuple[RemoteServerClient, Any]]:
    """Query servers concurrently; return each server that answered with its reply, and print a warning for the others.

    Raises:
        CalabashError: the first error, if no server answers.
    """

    def asked(server: RemoteServerClient) -> Any:
        try:
            return ask(server)
        except CalabashError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(32, len(servers))) as pool:
        answers = list(zip(servers, pool.map(asked, servers), strict=True))
    failed = [answer for _, answer in answers if isinstance(answer, CalabashError)]
    if len(failed) == len(answers):
        raise failed[0]
    for error in failed:
        print_on_stderr(f"warning: {error.message}")
    return [(server, answer) for server, answer in answers if not isinstance(answer, CalabashError)]


def views(servers: Sequence[RemoteServerClient]) -> list[tuple[RemoteServerClient, Any]]:
    """Return the servers that answer, each with its description, which lists its devices."""
    return every(servers, lambda server: server.send(lease_endpoints.SHOW_SERVER, timeout_s=ASK_S))
