"""``calabash user``: users, their roles, and their API tokens."""

from __future__ import annotations

import time
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output, settings
from calabash.cli.home import client
from calabash.cli.output import Column, Row, dash
from calabash.cli.pool.login import login_link
from calabash.cli.tenancy.tenant import NAME, show
from calabash.model.tenancy import Role, TokenScope
from calabash.model.units import format_duration, parse_duration_s


def _role(row: Row) -> str:
    place = "/".join(filter(None, (row["tenant"], row["project"])))
    return f"{row['role']} of {place}" if place else str(row["role"])


def _expires(row: Row) -> str:
    return format_duration(max(0.0, row["expires_at"] - time.time())) if row["state"] == "valid" else "-"


USER_COLUMNS = (
    NAME,
    Column(title="LOGIN", text=lambda r: dash(r["login"])),
    Column(title="ROLES", text=lambda r: dash(", ".join(_role(m) for m in r["roles"]))),
    Column(title="EMAIL", text=lambda r: dash(r["email"]), wide=True),
    Column(title="SUBJECT", text=lambda r: dash(r["subject"]), wide=True),
)
TOKEN_COLUMNS = (
    Column(title="ID", text=lambda r: r["id"]),
    Column(title="USER", text=lambda r: r["user"]),
    Column(title="KIND", text=lambda r: r["kind"]),
    Column(title="SCOPES", text=lambda r: dash(",".join(r["scopes"]))),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="EXPIRES IN", text=_expires, right=True),
    Column(title="NOTE", text=lambda r: dash(r["note"])),
)
_login = click.option("--login", metavar="NAME", help="Account of the pool's machine; empty: none.")
_subject = click.option("--subject", metavar="ISSUER|SUB", help="OIDC identity; empty: none.")
_email = click.option("--email", metavar="ADDRESS", help="Mail address that receives notices; empty: none.")
_tenant = click.option(
    "--tenant", default="", metavar="NAME", help="Tenant in which the role applies. Default: the whole platform."
)
_project = click.option(
    "--project",
    default="",
    metavar="NAME",
    help="Project of the tenant in which the role applies. Default: all projects.",
)


def _target(name: str, fmt: str) -> settings.Target:
    return settings.Target(
        kind="User", put=endpoints.PUT_USER, show=endpoints.SHOW_USER, values=(name,), name=name, fmt=fmt
    )


@click.group()
def user() -> None:
    """Create, change and list users, and grant and revoke their roles."""


@user.command("list")
@output.option
def list_users(fmt: str) -> None:
    """List the users that you may see, with their roles."""
    output.emit("UserList", client().send(endpoints.LIST_USERS)["items"], USER_COLUMNS, fmt, name="name")


@user.command("show")
@click.argument("name")
@output.option
def show_user(name: str, fmt: str) -> None:
    """Show one user."""
    show("User", client().send(endpoints.SHOW_USER, name), USER_COLUMNS, "wide" if fmt == "table" else fmt)


@user.command("create")
@click.argument("name")
@_login
@_subject
@_email
@output.option
def create_user(name: str, fmt: str, **options: Any) -> None:
    """Create a user. Accounts of the pool's machine are users without being created."""
    settings.create(_target(name, fmt), settings.said(options))


@user.command("set")
@click.argument("name")
@_login
@_subject
@_email
@output.option
def set_user(name: str, fmt: str, **options: Any) -> None:
    """Change a user. Settings without an option keep their values."""
    settings.change(_target(name, fmt), settings.said(options), command="user")


@user.command("delete")
@click.argument("name")
def delete_user(name: str) -> None:
    """Delete a user with its roles and tokens."""
    client().send(endpoints.DELETE_USER, name)
    click.echo(name)


@user.command("role")
@click.argument("name")
@click.argument("role", type=click.Choice([role.value for role in Role]))
@_tenant
@_project
def give_role(name: str, role: str, tenant: str, project: str) -> None:
    """Grant a user a role in a tenant, a project or the whole platform; replaces the user's earlier role there."""
    client().send(endpoints.ADD_MEMBER, body={"user": name, "role": role, "tenant": tenant, "project": project})
    click.echo(name)


@user.command("unrole")
@click.argument("name")
@_tenant
@_project
def take_role(name: str, tenant: str, project: str) -> None:
    """Revoke the role of a user in a tenant, a project or the whole platform."""
    place = {key: value for key, value in (("tenant", tenant), ("project", project)) if value}
    client().send(endpoints.REMOVE_MEMBER, query={"user": name, **place})
    click.echo(name)


@user.group("token")
def token() -> None:
    """Create, list and revoke API tokens, the credentials of programs and browsers."""


@token.command("list")
@output.option
def list_tokens(fmt: str) -> None:
    """List tokens, without their secrets."""
    output.emit("TokenList", client().send(endpoints.LIST_TOKENS)["items"], TOKEN_COLUMNS, fmt)


@token.command("create")
@click.option(
    "--user", "whose", default="", metavar="NAME", help="User of the token, for administrators. Default: you."
)
@click.option(
    "--link", "login", is_flag=True, help="Create a one-time login link for the console, valid for ten minutes."
)
@click.option("--expires", default="", metavar="TIME", help="Lifetime of the token. Default: 90d.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in TokenScope]),
    help="Scope to which the token is limited; repeat for several. Default: all rights of its user.",
)
@click.option("--note", default="", metavar="TEXT", help="Note on the purpose of the token.")
@output.option
def create_token(*, whose: str, login: bool, expires: str, scopes: tuple[str, ...], note: str, fmt: str) -> None:
    """Create a token and print its secret, which cannot be shown again; redirect it to a file that only you can read.

    With --link, print a link that logs the user in to the console, or only its code if the pool serves no console.
    """
    body = {"user": whose, "login": login, "scopes": list(scopes), "note": note}
    body["life_s"] = parse_duration_s(expires) if expires else 0.0
    made = client().send(endpoints.CREATE_TOKEN, body=body)
    if fmt in ("json", "yaml"):
        click.echo(output.document("Token", made, fmt))
        return
    console = client().send(endpoints.SHOW_STATUS)["console"] if login else ""
    click.echo(login_link(console, made["secret"]) if console else made["secret"])
    kind = "login link, valid once within ten minutes," if login else f"token {made['id']}"
    click.echo(f"{kind} for user {made['user']}; the secret cannot be shown again", err=True)


@token.command("revoke")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def revoke_token(ids: tuple[str, ...]) -> None:
    """Revoke tokens; requests with them are rejected from now on."""
    pool = client()
    for identifier in ids:
        pool.send(endpoints.DELETE_TOKEN, identifier)
        click.echo(identifier)
