"""``calabash invoice tariff``: apply and show tariffs, the prices of device hours."""

from __future__ import annotations

from pathlib import Path

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.model.errors import CalabashError, Reason

COLUMNS = (
    Column(title="NAME", text=lambda r: r["name"]),
    Column(title="VALID FROM", text=lambda r: r["valid_from"]),
    Column(title="VALID TO", text=lambda r: dash(r["valid_to"])),
    Column(title="CURRENCY", text=lambda r: r["currency"]),
    Column(title="TIME ZONE", text=lambda r: r["time_zone"]),
    Column(title="PRICES", text=lambda r: str(len(r["prices"])), right=True),
    Column(title="TENANTS", text=lambda r: ",".join(r["tenants"]) or "all"),
)


@click.group()
def tariff() -> None:
    """Apply and show tariffs, which set the prices of device hours."""


@tariff.command("apply")
@click.argument("file", type=click.Path(path_type=Path))
def apply_tariff(file: Path) -> None:
    """Create a tariff from a YAML file, or replace the tariff with the same name and first day.

    Issued invoices are not affected.
    """
    import msgspec  # noqa: PLC0415 - only here

    from calabash.cli.tenancy.tariff_file import read_tariff  # noqa: PLC0415

    settings = read_tariff(file)
    client().send(endpoints.PUT_TARIFF, body=msgspec.to_builtins(settings))
    click.echo(f"{settings.name} from {settings.valid_from}")


@tariff.command("list")
@output.option
def list_tariffs(fmt: str) -> None:
    """List tariffs."""
    output.emit("TariffList", client().send(endpoints.LIST_TARIFFS)["items"], COLUMNS, fmt, name="name")


@tariff.command("show")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    "fmt",
    type=click.Choice(("yaml", "json")),
    default="yaml",
    show_default=True,
    help="Output format.",
)
def show_tariff(name: str, fmt: str) -> None:
    """Show all versions of a tariff, by their first day."""
    found = [t for t in client().send(endpoints.LIST_TARIFFS)["items"] if t["name"] == name]
    if not found:
        raise CalabashError(
            f"there is no tariff {name[:64]!r}", reason=Reason.NOT_FOUND, hint="see `calabash invoice tariff list`"
        )
    click.echo(output.document("TariffList", found, fmt))
