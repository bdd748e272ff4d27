"""``calabash audit``: list the audit log, and verify that it was not changed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from http import HTTPStatus

import click

from calabash.api import endpoints
from calabash.api.audit_actions import action_in_words
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, Row, dash


def result(row: Row) -> str:
    """Return the result of an action: ``done``, ``refused``, ``not found`` or ``failed``, with the reason if it has one."""
    status = int(row["outcome"])
    if status < HTTPStatus.BAD_REQUEST:
        return str(row["reason"]) or "done"
    if status == HTTPStatus.NOT_FOUND:
        word = "not found"
    else:
        word = "refused" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "failed"
    return f"{word}: {row['reason']}" if row["reason"] else f"{word} ({status})"


COLUMNS = (
    Column(title="ID", text=lambda r: str(r["id"]), right=True),
    Column(title="TIME", text=lambda r: f"{datetime.fromtimestamp(r['at'], UTC):%Y-%m-%dT%H:%M:%SZ}"),
    Column(title="USER", text=lambda r: dash(r["user"])),
    Column(title="ACTION", text=lambda r: action_in_words(r["action"], r["target"])[0]),
    Column(title="OBJECT", text=lambda r: dash(action_in_words(r["action"], r["target"])[1])),
    Column(title="TENANT", text=lambda r: dash(r["tenant"])),
    Column(title="RESULT", text=result),
    Column(title="ORIGIN", text=lambda r: dash(r["origin"]), wide=True),
    Column(title="TOKEN", text=lambda r: dash(r["token"]), wide=True),
    Column(title="REQUEST", text=lambda r: f"{r['action']} {r['target']}", wide=True),
)


@click.group()
def audit() -> None:
    """Show the audit log, with user, origin and action of each change, and verify that the log is unaltered."""


@audit.command("list")
@click.option(
    "--after", type=click.IntRange(0), help="List lines after the line with this ID. Default: the newest lines."
)
@click.option(
    "--lines", "limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of lines."
)
@output.option
def list_audit(after: int | None, limit: int, fmt: str) -> None:
    """List lines of the audit log, oldest first: who did what to which object, and the result.

    -o wide adds the origin, the token and the HTTP request; -o json has the lines as they are stored.
    """
    query = {"limit": limit, **({"after": after} if after is not None else {})}
    items = client().send(endpoints.LIST_AUDIT, query=query)["items"]
    output.emit("AuditList", items, COLUMNS, fmt, name="id")


@audit.command()
@output.option
def verify(fmt: str) -> None:
    """Verify the hash chain of the audit log; exit code 1 if a line was changed, removed or cut off."""
    found = client().send(endpoints.VERIFY_AUDIT)
    if fmt in ("json", "yaml"):
        click.echo(output.document("AuditVerification", found, fmt))
        sys.exit(0 if found["whole"] else 1)
    if found["whole"]:
        click.echo(f"the audit log is intact up to line {found['last']}")
        return
    click.echo(f"error: the audit log is intact only up to line {found['last']}: {found['wrong']}", err=True)
    click.echo("hint: compare the log with a backup of the database", err=True)
    sys.exit(1)
