"""``calabash queue``: list and change queues with their quotas, and move waiting requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output, settings
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.model.units import exact_duration


def gpus(name: str, *, title: str = "", wide: bool = False) -> Column:
    """Return a column for an amount of devices; ``-`` for none."""

    def text(row: output.Row) -> str:
        value = row.get(name)
        return dash(None if value is None else f"{value:g}")

    return Column(title=title or name.upper(), text=text, right=True, wide=wide)


def past_use(row: output.Row) -> str:
    """Return the past use of a queue in device-hours."""
    value = row.get("past_use_device_s")
    return dash(None if value is None else f"{value / 3600:.3g}h")


COLUMNS = (
    Column(title="NAME", text=lambda r: r["name"]),
    Column(title="PARENT", text=lambda r: dash(r.get("parent"))),
    gpus("guarantee"),
    gpus("limit"),
    gpus("weight"),
    gpus("allocated"),
    gpus("pending"),
    Column(title="USERS", text=lambda r: dash(",".join(r["users"]))),
    Column(title="GROUPS", text=lambda r: dash(",".join(r["groups"]))),
)

PAST_COLUMNS = (
    gpus("fair_share", title="FAIR SHARE", wide=True),
    Column(title="PAST USE", text=past_use, right=True),
    gpus("effective_weight", title="EFFECTIVE WEIGHT"),
    Column(title="HALF-LIFE", text=lambda r: dash(exact_duration(r["half_life_s"] or 0)), right=True, wide=True),
)
"""Columns that are shown if past use counts."""


def columns_of(rows: Sequence[output.Row], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns, with those of past use behind the column WEIGHT if past use counts."""
    if not any(row.get("half_life_s") for row in rows):
        return tuple(columns)
    at = next(i for i, column in enumerate(columns) if column.title == "WEIGHT") + 1
    return (*columns[:at], *PAST_COLUMNS, *columns[at:])


_parent = click.option("--parent", metavar="NAME", help="Parent queue; empty: none.")
_OF_USERS = ("Users that may use the queue", "Groups whose members may use the queue")


def _target(name: str, fmt: str) -> settings.Target:
    return settings.Target(
        kind="Queue", put=endpoints.PUT_QUEUE, show=endpoints.LIST_QUEUES, values=(name,), name=name, fmt=fmt
    )


@click.group()
def queue() -> None:
    """Create, change and list queues, and move waiting requests between them. Amounts are in devices."""


@queue.command("list")
@output.option
def list_queues(fmt: str) -> None:
    """List queues with their quotas, and their allocated and pending devices.

    If past use counts, PAST USE is what the queue used above its guarantee, in device-hours of which older ones count less, and
    EFFECTIVE WEIGHT its weight after the correction by it.
    """
    found = client().send(endpoints.LIST_QUEUES)["items"]
    output.emit("QueueList", found, columns_of(found, COLUMNS), fmt, name="name")


@queue.command("create")
@click.argument("name")
@_parent
@settings.amounts
@settings.members(*_OF_USERS, changing=False)
@output.option
def create_queue(name: str, fmt: str, **options: Any) -> None:
    """Create a queue for administrators and for the given users and groups. All users may use the queue `default`."""
    settings.create(_target(name, fmt), settings.said(options))


@queue.command("set")
@click.argument("name")
@_parent
@settings.amounts
@settings.members(*_OF_USERS, changing=True)
@output.option
def set_queue(name: str, fmt: str, **options: Any) -> None:
    """Change a queue. Settings without an option keep their values."""
    settings.change(_target(name, fmt), settings.said(options), command="queue")


@queue.command("delete")
@click.argument("name")
def delete_queue(name: str) -> None:
    """Delete an empty queue."""
    client().send(endpoints.DELETE_QUEUE, name)
    click.echo(name)


@queue.command("move")
@click.argument("allocation")
@click.argument("name")
def move(allocation: str, name: str) -> None:
    """Move a waiting request, with the other members of its gang, to another queue.

    The request keeps its age and its tenant.
    """
    moved = client().send(endpoints.CHANGE_QUEUE, allocation, name, body={})
    click.echo(f"{moved['id']} waits in {moved['queue']}")
