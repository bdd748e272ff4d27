"""``calabash tenant usage``: GPU hours used in a period, summed by tenant, user, device or other fields."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence
from datetime import datetime

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, Row
from calabash.model.errors import CalabashError

CURRENT_S = 5.0  # usage counted up to an earlier time than this many seconds ago is reported as incomplete
AMOUNTS = ("gpu_hours", "busy_hours", "idle_hours", "memory_gib_hours", "uncertain_hours")


@click.command()
@click.option(
    "--by",
    default="tenant",
    show_default=True,
    metavar="NAMES",
    help="Fields to sum by, separated by commas: tenant, project, user, device, model, mode.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Start of the period, such as 2026-11-01 or 2026-11-01T08:00. Default: start of this month.",
)
@click.option("--until", metavar="TIME", help="End of the period, exclusive. Default: now.")
@output.option_of("table", "csv", "json", "yaml")
def usage(by: str, since: str | None, until: str | None, fmt: str) -> None:
    """Show usage in hours of whole devices.

    Times are in the time zone of this machine. GPU hours are the hours for which devices were allocated, busy hours the
    measured GPU time, and idle hours the GPU hours in which no GPU time was measured.
    """
    now = time.time()
    begin = datetime.now().astimezone().replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    to_s = now if until is None else _moment(until)
    asked = {"by": by, "from": begin if since is None else _moment(since), "to": to_s}
    found = client().send(endpoints.SHOW_USAGE, query=asked, timeout_s=120.0)
    names = [name.strip() for name in by.split(",") if name.strip()]
    if fmt == "csv":
        click.echo(comma_separated([*names, *AMOUNTS], found["items"]), nl=False)
    else:
        columns = [Column(title=name.upper(), text=_text(name)) for name in names]
        columns += [Column(title=_title(name), text=_figure(name), right=True) for name in AMOUNTS]
        output.emit("UsageList", found["items"], columns, fmt)
    if found["counted_to_s"] < min(to_s, now) - CURRENT_S:
        counted_to = datetime.fromtimestamp(found["counted_to_s"]).astimezone().isoformat(timespec="seconds")
        click.echo(f"usage is complete up to {counted_to}", err=True)
    if not found["complete"]:
        click.echo("warning: not all rows are shown; use fewer fields in --by, or a shorter period", err=True)


def comma_separated(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Return rows as CSV; texts that a spreadsheet would evaluate as a formula are prefixed with a quote."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name, "")) for name in names])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} and not _is_number(value):
        return "'" + value
    return value


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: output.dash(row.get(name))


def _figure(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row[name]:.3f}"


def _title(name: str) -> str:
    return name.upper().replace("_", " ")


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        raise CalabashError(
            f"{text[:40]!r} is not a time", hint="write 2026-11-01, 2026-11-01T08:00 or 2026-11-01T08:00+01:00"
        ) from None
