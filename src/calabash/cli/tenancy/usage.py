"""``calabash usage``: GPU hours used between two times, grouped as requested."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from urllib.parse import urlencode

import click

from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, Row
from calabash.model.errors import CalabashError

CURRENT_S = 5.0  # usage that is counted up to so long ago is told of
AMOUNTS = ("gpu_hours", "busy_hours", "idle_hours", "memory_gib_hours", "uncertain_hours")


@click.command()
@click.option(
    "--by",
    default="tenant",
    show_default=True,
    metavar="NAMES",
    help="Any of tenant, project, user, device, model, mode.",
)
@click.option(
    "--from", "since", metavar="TIME", help="As 2026-11-01 or 2026-11-01T08:00. Default: begin of this month."
)
@click.option("--to", "until", metavar="TIME", help="As --from, without that moment. Default: now.")
@output.option_of("table", "csv", "json", "yaml")
def usage(by: str, since: str | None, until: str | None, fmt: str) -> None:
    """Show what was used, in hours of whole devices.

    Times are of this machine's time zone. GPU hours are what was held, busy hours the GPU time that was measured, idle hours
    the part of the GPU hours in which no GPU time was measured.
    """
    now = time.time()
    begin = datetime.now().astimezone().replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    to_s = now if until is None else _moment(until)
    asked = {"by": by, "from": begin if since is None else _moment(since), "to": to_s}
    found = client().get(f"/v1/usage?{urlencode(asked)}", timeout_s=120.0)
    names = [name.strip() for name in by.split(",") if name.strip()]
    if fmt == "csv":
        click.echo(comma_separated([*names, *AMOUNTS], found["items"]), nl=False)
    else:
        columns = [Column(title=name.upper(), text=_text(name)) for name in names]
        columns += [Column(title=_title(name), text=_figure(name), right=True) for name in AMOUNTS]
        output.emit("UsageList", found["items"], columns, fmt)
    if found["counted_to_s"] < min(to_s, now) - CURRENT_S:
        counted_to = datetime.fromtimestamp(found["counted_to_s"]).astimezone().isoformat(timespec="seconds")
        click.echo(f"usage is counted up to {counted_to}", err=True)
    if not found["complete"]:
        click.echo("more rows than are shown: sum by less, or ask for a shorter time", err=True)


def comma_separated(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Return rows as CSV; a text that a spreadsheet would read as a formula gets a quote in front."""
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
            f"time {text[:40]!r} is not understood", hint="write 2026-11-01, 2026-11-01T08:00 or 2026-11-01T08:00+01:00"
        ) from None
