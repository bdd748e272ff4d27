"""``calabash queue``: who deserves how many devices, and who may borrow."""

from __future__ import annotations

import click

from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.standalone.client import quoted


def _gpus(name: str) -> Column:
    def text(row: output.Row) -> str:
        value = row.get(name)
        return dash(None if value is None else f"{value:g}")

    return Column(title=name.upper(), text=text, right=True)


COLUMNS = (
    Column(title="NAME", text=lambda r: r["name"]),
    Column(title="PARENT", text=lambda r: dash(r.get("parent"))),
    _gpus("deserved"),
    _gpus("limit"),
    _gpus("weight"),
    _gpus("allocated"),
    _gpus("pending"),
)


@click.group()
def queue() -> None:
    """Create, change and list queues (amounts in devices)."""


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
def set_queue(name: str, parent: str, deserved: float, limit: float | None, weight: float) -> None:
    """Create or change a queue."""
    client().put(
        f"/v1/queues/{quoted(name)}", {"parent": parent, "deserved": deserved, "limit": limit, "weight": weight}
    )
    click.echo(name)


@queue.command("delete")
@click.argument("name")
def delete_queue(name: str) -> None:
    """Delete an empty queue."""
    client().delete(f"/v1/queues/{quoted(name)}")
    click.echo(name)
