"""``calabash device``: devices of this machine, their health, and operations on them."""

from __future__ import annotations

import time
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.cli.pool.mig import mig
from calabash.cli.pool.view import unmanaged_lines
from calabash.cli.pool.vm import vm
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
    Column(title="ALLOCATIONS", text=lambda r: str(len(r.get("allocations", []))), right=True),
    Column(title="TEMP", text=lambda r: f"{r.get('temperature_c', 0)}C", right=True, wide=True),
    Column(title="UUID", text=lambda r: r["uuid"]),
    Column(title="CAUSE", text=lambda r: dash(r.get("cause"))),
)


def _checked(name: str) -> str:
    """Return the name of a device. Raises NOT_FOUND if it is empty or has a slash, as no device has."""
    if not name or "/" in name:
        raise CalabashError(f"there is no device {name!r}", reason=Reason.NOT_FOUND, hint="see `calabash device list`")
    return name


@click.group()
def device() -> None:
    """Show, drain, undrain, configure, test and reset devices.

    ID is the device's number, its UUID, or a prefix of the UUID.
    """


device.add_command(mig)
device.add_command(vm)


@device.command("list")
@output.option
def list_devices(fmt: str) -> None:
    """List the devices with their health."""
    output.emit("DeviceList", client().items(endpoints.LIST_DEVICES), COLUMNS, fmt, name="uuid")


@device.command()
@click.argument("identifier", metavar="ID")
@output.option
def show(identifier: str, fmt: str) -> None:
    """Show a device: its state with cause and time, its history and its allocations."""
    _print(client().send(endpoints.SHOW_DEVICE, _checked(identifier)), fmt)


@device.command()
@click.argument("identifier", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown to other users.")
@click.option("--evict", is_flag=True, help="End the programs on the device.")
@click.option(
    "--grace", default="0s", show_default=True, metavar="TIME", help="With --evict: how long programs may still run."
)
@output.option
def drain(identifier: str, reason: str, evict: bool, grace: str, fmt: str) -> None:
    """Drain a device until `undrain`, also over restarts of the pool. Programs on it keep running unless --evict is given."""
    body = {"reason": reason, "evict": evict, "grace_s": parse_duration_s(grace)}
    _print(client().send(endpoints.DRAIN_DEVICE, _checked(identifier), body=body), fmt)


@device.command()
@click.argument("identifier", metavar="ID")
@output.option
def undrain(identifier: str, fmt: str) -> None:
    """Return a device to service, whether it was drained or failed; the device must pass a test first."""
    _print(client().send(endpoints.UNDRAIN_DEVICE, _checked(identifier)), fmt)


@device.command()
@click.argument("identifier", metavar="ID")
@click.argument("mode", metavar="MODE")
@output.option
def mode(identifier: str, mode: str, fmt: str) -> None:
    """Pin a device to one sharing mode, such as mig or vgpu; auto lets the mode follow demand.

    Programs that run in another mode keep running; new allocations use the pinned mode only.
    """
    _print(client().send(endpoints.SET_DEVICE_MODE, _checked(identifier), body={"mode": mode}), fmt)


@device.command("set")
@click.argument("identifier", metavar="ID")
@click.option("--replicas", metavar="N|auto", help="Maximum number of tenants in mode timeslice.")
@click.option(
    "--timeslice", "interval", metavar="LENGTH", help="Length of time slices: default, short, medium, long or auto."
)
@click.option("--allow-spill", "spill", metavar="on|off|auto", help="Allow slices to spill memory to the host.")
@output.option
def set_card(identifier: str, replicas: str | None, interval: str | None, spill: str | None, fmt: str) -> None:
    """Override the pool's sharing parameters for one device. Running programs are not affected.

    The value auto restores the pool's setting. Overrides remain in force after a restart of the pool.
    """
    count = _replicas(replicas) if replicas is not None else None
    wanted = {"replicas": count, "interval": interval, "spill": spill}
    body = {name: value for name, value in wanted.items() if value is not None}
    if not body:
        raise CalabashError("no parameter was given", hint="give --replicas, --timeslice or --allow-spill")
    _print(client().send(endpoints.SET_DEVICE, _checked(identifier), body=body), fmt)


def _replicas(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= REPLICAS_MAX:
        raise CalabashError(f"--replicas {text[:32]!r} is out of range", hint=f"give 1 to {REPLICAS_MAX}, or auto")
    return int(text)


@device.command()
@click.argument("identifier", metavar="ID")
@output.option
def test(identifier: str, fmt: str) -> None:
    """Test an idle device: memory, copies and a kernel with a known result; compare times with the device's best ones.

    Exits with status 1 if the device fails the test. The health of the device is updated.
    """
    body = client().send(endpoints.TEST_DEVICE, _checked(identifier), timeout_s=TEST_S)
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
    """Reset an idle device and the devices linked to it by NVLink; unhealthy devices return to service after a test."""
    _print(client().send(endpoints.RESET_DEVICE, _checked(identifier), timeout_s=RESET_S), fmt)


def _print(body: Any, fmt: str) -> None:
    """Print a device as lines or as a document."""
    if fmt in ("json", "yaml"):
        click.echo(output.document("Device", body, fmt))
        return
    if fmt == "name":
        click.echo(body["device"]["uuid"])
        return
    for line in _lines(body):
        click.echo(output.printable(line))


def _shared(card: Any) -> str:
    """Return the sharing parameters of the device as text."""
    interval = f", interval {card['interval']}" if card["interval"] else ""
    spill = f"at most {format_mib(card['spill_mib'])} of host memory" if card["spill_mib"] else "not allowed"
    return f"timeslice: at most {card['replicas']} tenants{interval}; spilled memory: {spill}"


def _lines(body: Any) -> list[str]:
    card = body["device"]
    since = f" since {format_duration(max(0.0, time.time() - body['since']))}" if body["since"] else ""
    cause = f": {card['cause']}" if card["cause"] else ""
    given = f"{format_mib(card['memory_allocated_mib'])} of {format_mib(card['memory_mib'])} allocated"
    mode = f" in mode {card['mode']}" if card["mode"] else ""
    mode += f", pinned to mode {card['pinned']}" if card["pinned"] else ""
    lines = [
        f"GPU {card['index']} {card['model']} {card['uuid']}",
        f"health {card['health']}{since}{cause}",
        f"memory {given}, {format_mib(card['memory_used_mib'])} used; {card['temperature_c']} C, {card['power_w']:.0f} W",
        f"allocations {', '.join(card['allocations']) or 'none'}{mode}",
    ]
    lines.append(_shared(card))
    if body["needs"]:
        lines.append(f"needs {body['needs']}")
    if body["evict_at"]:
        lines.append(f"processes are ended in {format_duration(max(0.0, body['evict_at'] - time.time()))}")
    lines += [f"partition {part['name']} {part['health']}" for part in body["parts"]]
    lines += [f"test {name} {value:.0f} us" for name, value in sorted(body["figures"].items())]
    lines += unmanaged_lines([card])
    for entry in body["history"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"]))
        lines.append(f"{at} {entry['health']}: {entry['cause']}")
    return lines
