"""``calabash notify``: notifications of events by webhook and mail."""

from __future__ import annotations

import sys
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output, settings
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.cli.tenancy.tenant import NAME, show
from calabash.model.errors import CalabashError
from calabash.model.notices import KINDS

COLUMNS = (
    NAME,
    Column(title="TENANT", text=lambda r: dash(r["tenant"])),
    Column(title="RECEIVER", text=lambda r: r["target"]),
    Column(title="EVENTS", text=lambda r: ",".join(r["kinds"]) or "all"),
    Column(title="WAITING", text=lambda r: str(r["waiting"]), right=True),
    Column(title="DELIVERED", text=lambda r: str(r["delivered"]), right=True),
    Column(title="FAILED", text=lambda r: str(r["failed"]), right=True),
    Column(title="DROPPED", text=lambda r: str(r["dropped"]), right=True),
    Column(title="LAST ERROR", text=lambda r: dash(r["last_error"])),
)
_tenant = click.option(
    "--tenant",
    metavar="NAME",
    help="Tenant that owns the notification; empty: the platform. Default: the tenant or platform that you administer.",
)


def _place(tenant: str | None) -> dict[str, str]:
    """Return the query parameters of the tenant; "" is the platform, None the tenant of the user."""
    return {} if tenant is None else {"tenant": tenant}


@click.group()
def notify() -> None:
    """Create, change and list notifications, which send events to a webhook or a mail address."""


@notify.command("list")
@output.option
def list_notifications(fmt: str) -> None:
    """List notifications, with the numbers of notices that wait, were delivered, failed or were dropped."""
    output.emit("NotificationList", client().send(endpoints.LIST_NOTIFICATIONS)["items"], COLUMNS, fmt, name="name")


@notify.command("show")
@click.argument("name")
@_tenant
@output.option
def show_notification(name: str, tenant: str | None, fmt: str) -> None:
    """Show one notification."""
    found = client().send(endpoints.SHOW_NOTIFICATION, name, query=_place(tenant))
    show("Notification", found, COLUMNS, "wide" if fmt == "table" else fmt)


def _settings(command: Any) -> Any:
    for option in (
        click.option(
            "--event",
            "kinds",
            multiple=True,
            type=click.Choice([str(k) for k in KINDS]),
            help="Kind of event to send; repeat for several. Default: all kinds.",
        ),
        click.option("--email", metavar="ADDRESS", help="Mail address that receives the notices."),
        click.option("--webhook", metavar="URL", help="URL to which notices are posted, with a signature."),
        _tenant,
    ):
        command = option(command)
    return command


@notify.command("create")
@click.argument("name")
@_settings
def create_notification(name: str, tenant: str | None, **options: Any) -> None:
    """Create a notification. The secret of a webhook is printed on standard output, and cannot be shown again."""
    made = client().send(
        endpoints.PUT_NOTIFICATION, name, query=_place(tenant), body=settings.said(options) | {"new": True}
    )
    click.echo(made["secret"] or name)


@notify.command("set")
@click.argument("name")
@_settings
@click.option("--on-all", is_flag=True, help="Send events of all kinds, instead of the kinds set before.")
@click.option("--new-secret", is_flag=True, help="Replace the secret of the webhook.")
def set_notification(name: str, tenant: str | None, *, on_all: bool, new_secret: bool, **options: Any) -> None:
    """Change a notification. Settings without an option keep their values.

    A new secret is printed on standard output, and cannot be shown again.
    """
    body = settings.said(options) | ({"kinds": []} if on_all else {}) | ({"new_secret": True} if new_secret else {})
    if not body:
        raise CalabashError("no change was given", hint="see `calabash notify set --help`")
    made = client().send(endpoints.PUT_NOTIFICATION, name, query=_place(tenant), body=body | {"new": False})
    click.echo(made["secret"] or name)


@notify.command("delete")
@click.argument("name")
@_tenant
def delete_notification(name: str, tenant: str | None) -> None:
    """Delete a notification and the notices that wait for its receiver."""
    client().send(endpoints.DELETE_NOTIFICATION, name, query=_place(tenant))
    click.echo(name)


@notify.command("test")
@click.argument("name")
@_tenant
@output.option
def try_notification(name: str, tenant: str | None, fmt: str) -> None:
    """Send a test notice immediately; exit code 1 if the receiver does not accept it."""
    found = client().send(endpoints.TEST_NOTIFICATION, name, query=_place(tenant))
    if fmt in ("json", "yaml"):
        click.echo(output.document("NotificationTest", found, fmt))
        sys.exit(0 if found["passed"] else 1)
    if found["passed"]:
        click.echo(f"{name}: the receiver accepted the test notice")
        return
    click.echo(f"error: the receiver did not accept the test notice: {found['why']}", err=True)
    click.echo(f"hint: check the receiver with `calabash notify show {name}`", err=True)
    sys.exit(1)
