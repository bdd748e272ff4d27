"""``calabash net fabric``: devices on RDMA fabrics, and the controller that isolates tenants there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client, own_file
from calabash.cli.output import Column, dash
from calabash.model.errors import CalabashError, Reason

FILE = "fabric.toml"


def _standing(row: output.Row) -> str:
    standing: list[str] | None = row["standing"]
    return "not known" if standing is None else dash(", ".join(standing))


COLUMNS = (
    Column(title="DEVICE", text=lambda r: r["device"]),
    Column(title="PLANE", text=lambda r: r["plane"]),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="TENANT", text=lambda r: dash(r["tenant"])),
    Column(title="PARTITION", text=lambda r: f"{r['number']:#x}" if r["number"] else "-", right=True),
    Column(title="MEMBER OF", text=_standing),
    Column(title="MESSAGE", text=lambda r: dash(r["message"])),
)


@click.group("fabric")
def fabric() -> None:
    """Show the partitions of devices on InfiniBand, RoCE and NVLink; `calabash serve fabric` keeps them."""


@fabric.command("list")
@output.option
def list_cards(fmt: str) -> None:
    """List the devices on fabrics with their tenants and the partitions in which they were seen."""
    found = client().send(endpoints.SHOW_FABRIC)
    output.emit("FabricList", found["items"], COLUMNS, fmt, name="device")
    _warn(found)


@fabric.command("show")
@click.argument("device")
@output.option
def show_card(device: str, fmt: str) -> None:
    """Show one device on each plane, by its UUID."""
    found = client().send(endpoints.SHOW_FABRIC)
    rows = [row for row in found["items"] if row["device"] == device]
    if not rows:
        raise CalabashError(
            f"device {device[:96]!r} is on no known fabric",
            reason=Reason.NOT_FOUND,
            hint=f"see `calabash net fabric list`, and [[card]] in {FILE}",
        )
    output.emit("FabricList", rows, COLUMNS, fmt, name="device")
    _warn(found)


def _warn(found: dict[str, Any]) -> None:
    if not found["told_at"]:
        click.echo("no controller has reported fabrics since the pool started; run: calabash serve fabric", err=True)


@click.command("fabric")
@click.option(
    "--settings",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"Settings in TOML. Default: {FILE} in the home.",
)
@click.option("--once", is_flag=True, help="Reconcile once, report to the pool, and exit.")
def fabric_controller(path: Path | None, *, once: bool) -> None:
    """Run the controller that keeps partitions of fabrics equal to the allocations.

    It can be stopped and started at any time: it reads the desired state from the pool and the actual state from the
    fabrics.
    """
    from calabash.controllers.fabric.main import run_fabric_controller  # noqa: PLC0415
    from calabash.platform.home.logs import configure  # noqa: PLC0415

    configure()
    run_fabric_controller(client(), path or own_file(FILE), once=once)
