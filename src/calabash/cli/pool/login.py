"""``calabash login URL``: store a token for a pool of another machine, for ``calabash --server URL``."""

from __future__ import annotations

import sys

import click

from calabash.cli.home import token_store
from calabash.model.errors import CalabashError, Reason


def login_link(console: str, code: str) -> str:
    """Return the address that logs a browser in to a console with a login code, which browsers do not send."""
    return f"{console}/login#{code}"


@click.command()
@click.argument("url", metavar="URL")
@click.option("--forget", is_flag=True, help="Forget the token instead.")
def login(url: str, forget: bool) -> None:
    """Keep a token for the pool at URL, such as https://gpu.example.org:7432.

    Asks for a login code (`calabash login-link` on the pool's machine prints one behind the #) or an API token; without a
    terminal it is read from standard input. Then `calabash --server URL` works, or CALABASH_SERVER=URL.
    """
    from calabash.adapters.pool.gateway_client import ServerClient, checked_url  # noqa: PLC0415

    place = checked_url(url)
    if forget:
        token_store().store(place, "")
        click.echo(f"{place} is forgotten")
        return
    given = click.prompt("code or token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    secret = given.strip().rpartition("#")[2]
    try:
        token = ServerClient(place, "").post("/v1/sessions", {"code": secret})["secret"]
    except CalabashError as error:
        if error.reason is not Reason.NOT_AUTHENTICATED:
            raise
        token = secret  # it is no code that is still good, so it is to be a token
    me = ServerClient(place, token).get("/v1/me")
    token_store().store(place, token)
    click.echo(f"logged in to {place} as {me['user']}; use it with: calabash --server {place} ps")
