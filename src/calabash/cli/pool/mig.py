"""``calabash device mig``: show the MIG partitions of the cards, plan new ones, and pin cards to layouts.

A layout is a card and its instances: ``0:3g.40gb,1g.10gb*2``. ``3g.40gb@4`` sets the first memory slice of an instance;
``0:none`` unpins a card, which is then partitioned on demand. A file has one layout on each line, and comments after ``#``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.model.errors import CalabashError, Reason, cause
from calabash.model.mig import is_profile_name
from calabash.model.units import format_mib

APPLY_S = 300.0
COUNT_MAX = 64
_LINES_MAX = 1000
_INSTANCE = re.compile(r"(?P<profile>[^@*\s]+)(?:@(?P<start>[0-9]{1,2}))?(?:\*(?P<count>[0-9]{1,2}))?")
_FREE, _HINT = "·", "write a layout such as 0:3g.40gb,1g.10gb*2, or name a file with one layout a line"


def _how(row: Any) -> str:
    if not row["device"]:
        return "no room now"
    if row["shared"]:
        return f"created in the existing {row['profile'].partition('c.')[2]}"
    if row["reused"]:
        return "reused"
    return f"created, destroys {', '.join(row['destroyed'])}" if row["destroyed"] else "created"


def _start(row: Any) -> str:
    """Return the first memory slice; for a compute instance ``MEMORY.COMPUTE``, with its first compute slice."""
    if not row["device"]:
        return "-"
    return f"{row['start']}.{row['part']}" if row["part"] >= 0 else str(row["start"])


PLACES = (
    Column(title="PROFILE", text=lambda r: r["profile"]),
    Column(title="GPU", text=lambda r: str(r["device_index"]) if r["device"] else "-", right=True),
    Column(title="START", text=_start, right=True),
    Column(title="ACTION", text=_how),
)


@click.group()
def mig() -> None:
    """Show the MIG layouts of cards, plan instances, and pin cards to layouts."""


@mig.command()
@output.option
def show(fmt: str) -> None:
    """Show the cards with MIG: their memory slices, their instances, and the profiles that still fit."""
    cards = client().send(endpoints.LIST_MIG)["items"]
    if fmt in ("json", "yaml"):
        click.echo(output.document("MigCardList", cards, fmt))
    elif fmt == "name":
        for instance in (i for card in cards for i in card["instances"]):
            click.echo(instance["uuid"] or instance["profile"])
    elif not cards:
        click.echo("no card of this pool supports MIG")
    else:
        for card in cards:
            for line in drawn(card, wide=fmt == "wide"):
                click.echo(line)


@mig.command()
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE...")
@output.option
def plan(profiles: tuple[str, ...], fmt: str) -> None:
    """Show where instances would be created if they were requested now, one after the other. Changes nothing."""
    names = [name for text in profiles for name, _ in instances_of(text)]
    body = client().send(endpoints.PLAN_MIG, body={"profiles": names})
    output.emit("MigPlaceList", body["items"], PLACES, fmt, name="profile")


@mig.command()
@click.argument("layouts", nargs=-1, required=True, metavar="LAYOUT...")
@click.option("--dry-run", "check", is_flag=True, help="Check the layouts only; change nothing.")
@output.option
def apply(layouts: tuple[str, ...], check: bool, fmt: str) -> None:
    """Partition idle cards and pin them to LAYOUT, such as 0:3g.40gb,1g.10gb*2, or a file with one layout a line.

    All layouts are checked before any card is changed. Instances of a layout are allocated to requests, and are never
    destroyed to make room for other profiles. `0:none` unpins card 0, which is then partitioned on demand.
    """
    cards = [card for text in layouts for card in layouts_of(text)]
    body = client().send(endpoints.APPLY_MIG, body={"cards": cards, "check": check}, timeout_s=APPLY_S)
    output.emit("MigPlaceList", body["items"], PLACES[:3], fmt, name="profile")


def layouts_of(text: str) -> list[dict[str, Any]]:
    """Parse a layout, or all layouts of a file. Raises CalabashError if the text is neither."""
    if re.match(r"[^\s/:]+:", text):
        return [_layout(text)]
    try:
        lines = Path(text).read_text().splitlines()[: _LINES_MAX + 1]
    except (OSError, ValueError) as error:
        raise CalabashError(f"{text[:200]!r} is neither a layout nor a file: {cause(error)}", hint=_HINT) from error
    found = [_layout(line) for line in (raw.partition("#")[0].strip() for raw in lines) if line]
    if not found or len(lines) > _LINES_MAX:
        raise CalabashError(
            f"{text} has {len(found)} layouts in {len(lines)} lines", reason=Reason.BAD_FILE, hint=_HINT
        )
    return found


def _layout(text: str) -> dict[str, Any]:
    device, _, rest = text.partition(":")
    instances = [] if rest.strip() == "none" else instances_of(rest)
    if not device.strip() or (not instances and rest.strip() != "none"):
        raise CalabashError(f"layout {text[:200]!r} is not valid", hint=_HINT)
    return {"device": device.strip(), "instances": [{"profile": name, "start": at} for name, at in instances]}


def instances_of(text: str) -> list[tuple[str, int]]:
    """Parse ``3g.40gb,1g.10gb*2`` to profiles and first memory slices, -1 if not given. Raises CalabashError."""
    found: list[tuple[str, int]] = []
    for word in text.replace(",", " ").split():
        match = _INSTANCE.fullmatch(word)
        count = int((match and match["count"]) or 1)
        if match is None or not is_profile_name(match["profile"]) or not 1 <= count <= COUNT_MAX:
            raise CalabashError(
                f"{word[:64]!r} is not a MIG instance", hint="write 3g.40gb, 1g.10gb*2 or 3g.40gb@4, for example"
            )
        if match["start"] is not None and count > 1:
            raise CalabashError(
                f"{word[:64]!r} places {count} instances at one memory slice",
                hint="write each instance with its own @START",
            )
        found += [(match["profile"], int(match["start"]) if match["start"] is not None else -1)] * count
    return found


def drawn(card: Any, *, wide: bool = False) -> list[str]:
    """Return a card as lines: its model and mode, a row of memory slices, its instances, and the profiles that still fit."""
    row = [_FREE] * card["slices"]
    marks = "abcdefghijklmnopqrstuvwxyz"
    lines = []
    for mark, instance in zip(marks, card["instances"], strict=False):
        begin, size = instance["start"], instance["slices"]
        for number in range(max(0, begin), min(card["slices"], begin + size)):
            row[number] = mark
        end = f"-{begin + size - 1}" if size > 1 else ""
        who = ",".join(instance["allocations"]) or instance["state"]
        uuid = f"  {dash(instance['uuid'])}" if wide else ""
        memory = format_mib(instance["memory_mib"])
        if instance.get("parts"):
            who, uuid = (
                "compute instances, which share its memory" if instance["state"] == "used" else instance["state"],
                "",
            )
        lines.append(f"  {mark}  {instance['profile']:<12} {f'{begin}{end}':<4} {memory:>8}  {who}{uuid}")
        lines += _parts(instance, wide=wide)
    mode = card["mode"] or "idle"
    kept = f", pinned to mode {card['pinned']}" if card["pinned"] else ""
    room = ", ".join(f"{p['name']} at {' '.join(map(str, p['starts']))}" for p in card["profiles"] if p["starts"])
    head = f"GPU {card['index']} {card['model']} ({mode}{kept}), {card['compute_free']} of {card['compute']}"
    return [
        f"{head} compute slices free",
        f"  [{''.join(row)}]",
        *lines,
        f"  room for {room}" if room else "  no room for a further instance",
    ]


def _parts(instance: Any, *, wide: bool) -> list[str]:
    """Return the compute instances of a GPU instance as lines: a row of its compute slices, and a line for each."""
    if not instance.get("parts"):
        return []
    row, lines = [_FREE] * instance["compute"], []
    for number, part in enumerate(instance["parts"], 1):
        end = part["start"] + part["compute"]
        row[part["start"] : end] = [str(number)] * part["compute"]
        at = f"{part['start']}-{end - 1}" if part["compute"] > 1 else str(part["start"])
        uuid = f"  {dash(part['uuid'])}" if wide else ""
        lines.append(f"        {number}  {part['profile']:<12} {at:<4} {part['allocation'] or 'idle'}{uuid}")
    return [f"     [{''.join(row)}]", *lines]
