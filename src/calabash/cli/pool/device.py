"""``calabash device``: the cards of this machine, their health, and what operators do with them."""

from __future__ import annotations

import time
from typing import Any

import click

from calabash.adapters.pool.client import quoted
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.cli.pool.view import strangers
from calabash.model.device import REPLICAS_MAX
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration, format_mib, parse_duration_s

TEST_S = 60.0
RESET_S = 120.0

COLUMNS = (
    Column(title="GPU", text=lambda r: str(r["index"]), right=True),
    Column(title="MODEL", text=lambda r: r["model"]),
    Column(title="HEALTH", text=lambda r: r["health"]),
    Column(title="MODE", text=lambda r: dash(r.get("mode"))),
    Column(title="HELD BY", text=lambda r: str(len(r.get("allocations", []))), right=True),
    Column(title="TEMP", text=lambda r: f"{r.get('temperature_c', 0)}C", right=True, wide=True),
    Column(title="UUID", text=lambda r: r["uuid"]),
    Column(title="CAUSE", text=lambda r: dash(r.get("cause"))),
)


def _path(name: str, verb: str = "") -> str:
    if not name or "/" in name:
        raise CalabashError(f"there is no device {name!r}", reason=Reason.NOT_FOUND, hint="see `calabash device list`")
    return f"/v1/devices/{quoted(name)}" + (f"/{verb}" if verb else "")


@click.group()
def device() -> None:
    """Show cards, take them out of service and put them back, test and reset them.

    ID is a card's number, its UUID, or the beginning of that.
    """


@device.command("list")
@output.option
def list_devices(fmt: str) -> None:
    """List the cards with their health."""
    output.emit("DeviceList", client().items("/v1/devices"), COLUMNS, fmt, name="uuid")


@device.command()
@click.argument("identifier", metavar="ID")
@output.option
def show(identifier: str, fmt: str) -> None:
    """Show a card: its state, why and since when, what has happened to it and who is on it."""
    _print(client().get(_path(identifier)), fmt)


@device.command()
@click.argument("identifier", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="Why, for those who ask.")
@click.option("--evict", is_flag=True, help="End what runs on it.")
@click.option(
    "--grace", default="0s", show_default=True, metavar="TIME", help="With --evict: how long it may still run."
)
@output.option
def drain(identifier: str, reason: str, evict: bool, grace: str, fmt: str) -> None:
    """Give out nothing new of a card; what runs on it runs on, unless --evict. Lasts until `undrain`, restarts included."""
    body = {"reason": reason, "evict": evict, "grace_s": parse_duration_s(grace)}
    _print(client().post(_path(identifier, "drain"), body), fmt)


@device.command()
@click.argument("identifier", metavar="ID")
@output.option
def undrain(identifier: str, fmt: str) -> None:
    """Put a card back to work, whatever took it out; it must pass a test first."""
    _print(client().post(_path(identifier, "undrain")), fmt)


@device.command()
@click.argument("identifier", metavar="ID")
@click.argument("mode", metavar="MODE")
@output.option
def mode(identifier: str, mode: str, fmt: str) -> None:
    """Keep a card in one sharing mode, like mig or vgpu, or let it follow demand: auto.

    What runs on it in another mode runs on; nothing new of that mode comes.
    """
    _print(client().post(_path(identifier, "mode"), {"mode": mode}), fmt)


@device.command("set")
@click.argument("identifier", metavar="ID")
@click.option("--replicas", metavar="N|auto", help="How many tenants use it in turns, mode timeslice.")
@click.option(
    "--interval", metavar="LENGTH", help="How long these turns are: default, short, medium, long, or auto, the pool's."
)
@click.option("--spill", metavar="on|off|auto", help="Whether slices may have memory beyond it.")
@output.option
def set_card(identifier: str, replicas: str | None, interval: str | None, spill: str | None, fmt: str) -> None:
    """Give a card out otherwise than the pool's other cards; what runs on it runs on.

    auto: as the pool's settings say. Lasts until it is set again, restarts included.
    """
    count = _replicas(replicas) if replicas is not None else None
    wanted = {"replicas": count, "interval": interval, "spill": spill}
    body = {name: value for name, value in wanted.items() if value is not None}
    if not body:
        raise CalabashError("nothing is to be set", hint="say --replicas, --interval or --spill")
    _print(client().post(_path(identifier, "settings"), body), fmt)


def _replicas(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= REPLICAS_MAX:
        raise CalabashError(f"replicas {text[:32]!r} is not usable", hint=f"1 to {REPLICAS_MAX}, or auto")
    return int(text)


@device.command()
@click.argument("identifier", metavar="ID")
@output.option
def test(identifier: str, fmt: str) -> None:
    """Try an idle card: memory, copies both ways, a kernel with a known result, against the card's own best times.

    Fails when the card does; the card's state follows.
    """
    body = client().post(_path(identifier, "test"), timeout_s=TEST_S)
    if fmt in ("json", "yaml"):
        click.echo(output.document("DeviceTest", body, fmt))
    else:
        click.echo("passed" if body["passed"] else f"failed: {body['why']}")
        for name, value in sorted(body["figures"].items()):
            best = body["device"]["figures"].get(name, value)
            click.echo(f"  {name} {value:.0f} us, best {best:.0f} us")
    if not body["passed"]:
        click.get_current_context().exit(1)


@device.command()
@click.argument("identifier", metavar="ID")
@output.option
def reset(identifier: str, fmt: str) -> None:
    """Reset an idle card, and those that NVLink joins to it; what needed a reset goes back to work after a test."""
    _print(client().post(_path(identifier, "reset"), timeout_s=RESET_S), fmt)


def _print(body: Any, fmt: str) -> None:
    """One card, for people line by line."""
    if fmt in ("json", "yaml"):
        click.echo(output.document("Device", body, fmt))
        return
    if fmt == "name":
        click.echo(body["device"]["uuid"])
        return
    for line in _lines(body):
        click.echo(output.printable(line))


def _shared(card: Any) -> str:
    """How it is given out."""
    interval = f", interval {card['interval']}" if card["interval"] else ""
    spill = f"up to {format_mib(card['spill_mib'])} of host memory" if card["spill_mib"] else "not allowed"
    return f"in turns for {card['replicas']} tenants{interval}; memory beyond it {spill}"


def _lines(body: Any) -> list[str]:
    card = body["device"]
    since = f" since {format_duration(max(0.0, time.time() - body['since']))}" if body["since"] else ""
    cause = f": {card['cause']}" if card["cause"] else ""
    given = f"{format_mib(card['memory_allocated_mib'])} of {format_mib(card['memory_mib'])} given out"
    mode = f" in mode {card['mode']}" if card["mode"] else ""
    mode += f", kept in mode {card['pinned']}" if card["pinned"] else ""
    lines = [
        f"GPU {card['index']} {card['model']} {card['uuid']}",
        f"health {card['health']}{since}{cause}",
        f"memory {given}, {format_mib(card['memory_used_mib'])} used; {card['temperature_c']} C, {card['power_w']:.0f} W",
        f"held by {', '.join(card['allocations']) or 'nobody'}{mode}",
    ]
    lines.append(_shared(card))
    if body["needs"]:
        lines.append(f"needs {body['needs']}")
    if body["evict_at"]:
        lines.append(f"whoever is on it is ended in {format_duration(max(0.0, body['evict_at'] - time.time()))}")
    lines += [f"part {part['name']} {part['health']}" for part in body["parts"]]
    lines += [f"test {name} {value:.0f} us" for name, value in sorted(body["figures"].items())]
    lines += strangers([card])
    for entry in body["history"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"]))
        lines.append(f"{at} {entry['health']}: {entry['cause']}")
    return lines
