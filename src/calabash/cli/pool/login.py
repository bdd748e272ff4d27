"""``calabash login URL``: store a token for a pool of another machine, for ``calabash --server URL``."""

from __future__ import annotations

import sys

import click

from calabash.api import endpoints
from calabash.cli.home import token_store
from calabash.model.errors import CalabashError, Reason


def login_link(console: str, code: str) -> str:
    """Return the login address of a console, with the login code in the fragment, which browsers do not send."""
    return f"{console}/login#{code}"


@click.command()
@click.argument("url", metavar="URL")
@click.option("--forget", is_flag=True, help="Delete the stored token instead.")
def login(url: str, forget: bool) -> None:
    """Store a token for the pool at URL, such as https://gpu.example.org:7432.

    Prompts for an API token or a login code, which is the part after # of a link printed by `calabash login-link` on the
    pool's machine; reads standard input if it is not a terminal. Afterwards use `calabash --server URL`, or set
    CALABASH_SERVER=URL.
    """
    from calabash.adapters.pool.gateway_client import ServerClient, checked_url  # noqa: PLC0415

    place = checked_url(url)
    if forget:
        token_store().store(place, "")
        click.echo(f"deleted the token for {place}")
        return
    given = click.prompt("code or token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    secret = given.strip().rpartition("#")[2]
    try:
        token = ServerClient(place, "").send(endpoints.CREATE_SESSION, body={"code": secret})["secret"]
    except CalabashError as error:
        if error.reason is not Reason.NOT_AUTHENTICATED:
            raise
        token = secret  # not a valid login code, so it must be a token
    me = ServerClient(place, token).send(endpoints.SHOW_ME)
    token_store().store(place, token)
    click.echo(f"logged in to {place} as {me['user']}; use it with: calabash --server {place} ps")
