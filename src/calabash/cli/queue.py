"""``calabash queue``: who deserves how many devices, and who may borrow."""

from __future__ import annotations

from typing import Any

import click

from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.seams.pool.client import quoted


def gpus(name: str, *, wide: bool = False) -> Column:
    """An amount of devices; ``-`` for none."""

    def text(row: output.Row) -> str:
        value = row.get(name)
        return dash(None if value is None else f"{value:g}")

    return Column(title=name.upper(), text=text, right=True, wide=wide)


COLUMNS = (
    Column(title="NAME", text=lambda r: r["name"]),
    Column(title="PARENT", text=lambda r: dash(r.get("parent"))),
    gpus("deserved"),
    gpus("limit"),
    gpus("weight"),
    gpus("allocated"),
    gpus("pending"),
    Column(title="USERS", text=lambda r: dash(",".join(r["users"]))),
    Column(title="GROUPS", text=lambda r: dash(",".join(r["groups"]))),
)

_users = click.option("--users", default="", metavar="NAMES", help="Users that may use it, separated by commas.")
_groups = click.option("--groups", default="", metavar="NAMES", help="Groups whose members may use it.")


def names(text: str) -> list[str]:
    """Words between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


@click.group()
def queue() -> None:
    """Create, change and list queues (amounts in devices), and move what waits."""


@queue.command("list")
@output.option
def list_queues(fmt: str) -> None:
    """List queues with what they deserve and hold."""
    output.emit("QueueList", client().get("/v1/queues")["items"], COLUMNS, fmt, name="name")


@queue.command("set")
@click.argument("name")
@click.option("--parent", default="", metavar="NAME", help="Queue that it belongs to.")
@click.option("--deserved", type=click.FloatRange(0), default=0.0, help="Devices guaranteed.")
@click.option("--limit", type=click.FloatRange(0), help="Devices at most. Default: no limit.")
@click.option("--weight", type=click.FloatRange(0), default=1.0, show_default=True, help="Share of what is over quota.")
@_users
@_groups
def set_queue(name: str, users: str, groups: str, **amounts: Any) -> None:
    """Create or change a queue; what is not named is set to its default.

    The queue `default` is everybody's. Another is for administrators and for those named here.
    """
    body = amounts | {"users": names(users), "groups": names(groups)}
    client().put(f"/v1/queues/{quoted(name)}", body)
    click.echo(name)


@queue.command("delete")
@click.argument("name")
def delete_queue(name: str) -> None:
    """Delete an empty queue."""
    client().delete(f"/v1/queues/{quoted(name)}")
    click.echo(name)


@queue.command("move")
@click.argument("allocation")
@click.argument("name")
def move(allocation: str, name: str) -> None:
    """Move a request that waits to another queue, its gang with it.

    It keeps its age and its tenant.
    """
    moved = client().put(f"/v1/allocations/{quoted(allocation)}/queue/{quoted(name)}", {})
    click.echo(f"{moved['id']} waits in {moved['queue']}")
