"""``calabash device vm``: attach cards or virtual functions to virtual machines, and detach them."""

from __future__ import annotations

import time
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client, require_this_machine
from calabash.cli.output import Column, Row, dash
from calabash.cli.pool.view import age
from calabash.model.errors import CalabashError, Reason

MODE = "passthrough"
GRANT_S = 120.0
BACK_S = 60.0
_POLL_S = 0.2
_LIBVIRT = "libvirt:"


def _machine_of(row: Row) -> str:
    """Return the name of the virtual machine that has an allocation, from the command ``vm NAME`` of the allocation."""
    words = row["command"]
    return str(words[1]) if len(words) > 1 and words[0] == "vm" else dash(" ".join(words))


def _part(row: Row) -> str:
    return ",".join(dict.fromkeys(s.get("profile") or "whole" for s in row["slices"])) or "-"


COLUMNS = (
    Column(title="ID", text=lambda r: r["id"]),
    Column(title="GPU", text=lambda r: ",".join(str(s["device_index"]) for s in r["slices"]) or "-"),
    Column(title="PROFILE", text=_part),
    Column(title="MACHINE", text=_machine_of),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="AGE", text=age, right=True),
    Column(title="USER", text=lambda r: dash(r.get("user")), wide=True),
)


@click.group()
def vm() -> None:
    """Attach cards, or virtual functions of cards, to virtual machines, and detach them."""
    require_this_machine("device vm", hint="virtual machines run on the pool's machine")


@vm.command()
@click.option(
    "--device", "gpu", required=True, metavar="ID", help="The card's number, its UUID, or a prefix of the UUID."
)
@click.option(
    "--vf",
    "profile",
    default="",
    metavar="PROFILE",
    help="Attach a virtual function with this profile instead of the whole card.",
)
@click.option(
    "--machine",
    "target",
    default="",
    metavar="libvirt:DOMAIN",
    help="Virtual machine to attach the card to, with virsh.",
)
@click.option("--xml", "xml", is_flag=True, help="Print the device as libvirt XML instead of attaching it.")
@output.option_of("table", "json", "yaml")
def attach(gpu: str, profile: str, target: str, xml: bool, fmt: str) -> None:
    """Unbind a card from its driver and attach it to a virtual machine, until it is detached."""
    from calabash.adapters.host.pci import libvirt  # noqa: PLC0415 - only where it is needed

    if bool(target) == xml:
        what = "--machine and --xml exclude each other" if xml else "neither --machine nor --xml is given"
        raise CalabashError(what, hint="give --machine libvirt:DOMAIN to attach the card, or --xml to print the device")
    if xml and fmt != "table":
        raise CalabashError(f"--xml and --output {fmt} exclude each other", hint="leave out one of them")
    domain = _domain(target) if target else ""
    pool = client()
    device = pool.send(endpoints.SHOW_DEVICE, gpu)["device"]
    body = {
        "mode": MODE,
        "vf": profile,
        "uuids": [device["uuid"]],
        "standing": True,
        "command": ["vm", target or "xml"],
    }
    granted = pool.send(endpoints.ALLOCATE, body=body, timeout_s=GRANT_S)
    try:
        devices = _devices(granted)
        for name in devices if domain else ():
            libvirt.attach(domain, libvirt.device_xml(name))
    except BaseException:
        pool.send(endpoints.RELEASE, granted["id"], query={"force": 1})
        raise
    if xml:
        click.echo("".join(libvirt.device_xml(name) for name in devices), nl=False)
        click.echo(f"{granted['id']}: detach it with `calabash device vm detach {granted['id']}`", err=True)
    else:
        text = f"{granted['id']}: {', '.join(devices)} of device {device['index']} is attached to {domain}"
        output.emit_made("Attachment", {"id": granted["id"], "domain": domain, "devices": devices}, text, fmt)


@vm.command()
@click.argument("name", metavar="NAME")
def detach(name: str) -> None:
    """Detach cards from a virtual machine. NAME is an ID of `calabash device vm list`, or the machine's name."""
    from calabash.adapters.host.pci import libvirt  # noqa: PLC0415

    pool = client()
    rows = [row for row in _rows() if name in (row["id"], _machine_of(row), _machine_of(row).removeprefix(_LIBVIRT))]
    if not rows:
        raise CalabashError(
            f"nothing is attached to a virtual machine {name!r}",
            reason=Reason.NOT_FOUND,
            hint="see `calabash device vm list`",
        )
    for row in rows:
        target = _machine_of(row)
        if target.startswith(_LIBVIRT):
            granted = pool.send(endpoints.SHOW_ENVIRONMENT, row["id"])
            for device in _devices(granted):
                libvirt.detach(_domain(target), libvirt.device_xml(device))
        pool.send(endpoints.RELEASE, row["id"], query={"force": 1}, timeout_s=GRANT_S)
        _wait_until_back(row)


def _wait_until_back(row: Row) -> None:
    """Wait at most BACK_S until the cards are in service again; print those that are not, and the allocation's ID."""
    uuids = {s["device"] for s in row["slices"]}
    until = time.monotonic() + BACK_S
    away = _away(uuids)
    while away and time.monotonic() < until:
        time.sleep(_POLL_S)
        away = _away(uuids)
    for device in away:
        click.echo(f"device {device['index']} is {device['health']}: {device['cause']}", err=True)
    click.echo(row["id"])


def _away(uuids: set[str]) -> list[Any]:
    return [
        d
        for d in client().items(endpoints.LIST_DEVICES)
        if d["uuid"] in uuids and d["health"] in ("draining", "recovering")
    ]


@vm.command("list")
@output.option
def list_machines(fmt: str) -> None:
    """List the cards and virtual functions attached to virtual machines."""
    output.emit("MachineList", _rows(), COLUMNS, fmt)


def _rows() -> list[Any]:
    return [row for row in client().items(endpoints.LIST_ALLOCATIONS) if row.get("mode") == MODE]


def _devices(granted: Row) -> list[str]:
    """Return the PCI addresses of an attached card and of its other functions, such as audio.

    A virtual function that is a mediated device has a UUID instead of a PCI address.
    """
    environment = granted["environment"]
    names = environment.get("CALABASH_PCI") or environment.get("CALABASH_MDEV") or ""
    return [name for name in (*names.split(","), *environment.get("CALABASH_PCI_BESIDE", "").split(",")) if name]


def _domain(target: str) -> str:
    from calabash.adapters.host.pci import libvirt  # noqa: PLC0415

    if not target.startswith(_LIBVIRT):
        raise CalabashError(
            f"{target[:80]!r} is not libvirt:DOMAIN",
            hint="write --machine libvirt:DOMAIN; `virsh list --all` lists domains",
        )
    return libvirt.require_domain(target.removeprefix(_LIBVIRT))
