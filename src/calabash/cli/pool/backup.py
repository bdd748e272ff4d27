"""``calabash backup``: copy the pool's database to a file and back."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from calabash.adapters.host.processes import user_name
from calabash.api import endpoints
from calabash.cli.home import home, own_client, own_file
from calabash.model.errors import CalabashError, Reason
from calabash.platform.audit.trail import KEY_FILE
from calabash.platform.home.backup import create_backup, restore_pool
from calabash.platform.home.directory import DATABASE_FILE

DATABASE = click.option(
    "--db",
    metavar="URL",
    default="",
    help="URL of the database, as for `calabash up --db`; -: read it from stdin.",
)


@click.group()
def backup() -> None:
    """Back up and restore the pool's database: journal, tenants, digests of tokens, usage, invoices, audit log."""


@backup.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@DATABASE
def create(file: Path, db: str) -> None:
    """Write a consistent backup to a new FILE; the pool may be running."""
    facts = create_backup(_url(db), file)
    click.echo(f"{file}: {facts.rows} rows, schema {facts.schema}")


@backup.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@DATABASE
def restore(file: Path, db: str) -> None:
    """Replace the pool's database by a backup. The pool must be stopped."""
    key = home() / KEY_FILE
    had_key = key.exists()
    facts, wrong = restore_pool(home(), _url(db, running=False), file, by=user_name(os.getuid()))
    click.echo(f"restored {facts.rows} rows of {datetime.fromtimestamp(facts.written_at, UTC):%Y-%m-%dT%H:%M:%SZ}")
    if wrong:
        click.echo(f"warning: the audit log cannot be verified: {wrong}", err=True)
        if not had_key:
            click.echo(f"hint: {key} is missing: copy it from the backed-up pool, and restore again", err=True)
        sys.exit(1)


def _url(given: str, *, running: bool = True) -> str:
    if given == "-":
        given = sys.stdin.readline().strip()
    if given:
        return given
    if running:
        try:
            used = str(own_client().send(endpoints.SHOW_STATUS)["db"])
        except CalabashError:
            used = ""
        if used and not used.startswith("sqlite"):
            raise CalabashError(
                f"the pool's database is {used}, not a file", reason=Reason.BAD_REQUEST, hint="give its URL with --db"
            )
    return f"sqlite:///{own_file(DATABASE_FILE) if running else home() / DATABASE_FILE}"
