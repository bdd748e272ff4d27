"""``calabash login``: store a token for a pool of another machine, or print a link to the console of this one."""

from __future__ import annotations

import sys

import click

from calabash.adapters.pool.client import ApiClient
from calabash.api import endpoints
from calabash.cli.home import client, require_this_machine, token_store
from calabash.model.errors import CalabashError, Reason


def login_link(console: str, code: str) -> str:
    """Return the login address of a console, with the login code in the fragment, which browsers do not send."""
    return f"{console}/login#{code}"


def new_login_link(pool: ApiClient, console: str) -> str:
    """Return a link that logs a browser in as this user; it works once."""
    return login_link(console, pool.send(endpoints.CREATE_TOKEN, body={"login": True})["secret"])


@click.command()
@click.argument("url", metavar="[URL]", default="")
@click.option("--forget", is_flag=True, help="Delete the stored token instead.")
@click.option("--link", is_flag=True, help="Print a link that logs you in to this pool's console.")
def login(url: str, *, forget: bool, link: bool) -> None:
    """Store a token for the pool at URL, such as https://gpu.example.org:7432.

    Prompts for an API token or a login code, which is the part after # of a link printed by `calabash login --link` on the
    pool's machine; reads standard input if it is not a terminal. Afterwards use `calabash --server URL`, or set
    CALABASH_SERVER=URL.

    With --link, print a link that logs you in to the console of this machine's pool. It works once, within ten minutes.
    """
    if link:
        _print_login_link(url, forget=forget)
        return
    if not url:
        raise click.UsageError("missing argument 'URL'", click.get_current_context())
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


def _print_login_link(url: str, *, forget: bool) -> None:
    if url or forget:
        raise click.UsageError("--link is given without URL and --forget", click.get_current_context())
    require_this_machine("login --link", hint="create the link on the pool's machine, or use `calabash login URL` here")
    pool = client()
    status = pool.send(endpoints.SHOW_STATUS)
    if not status["console"]:
        raise CalabashError(
            status["console_failure"] or "this pool serves no console",
            reason=Reason.NOT_FOUND,
            hint="start it with `calabash up --console HOST:PORT`",
        )
    click.echo(new_login_link(pool, status["console"]))
