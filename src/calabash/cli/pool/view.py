"""``calabash ps``, ``smi``, ``why`` and ``release``: list allocations and devices, explain waiting, end allocations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.grant_line import share
from calabash.cli.home import client
from calabash.cli.output import Column, Row, command_line, dash
from calabash.cli.several import for_each
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration, format_mib

_PIDS_SHOWN = 4


def amount(row: Any) -> str:
    """Return an allocation's amount of each device: ``30% 8GiB``, ``1g.10gb``; for several devices ``2x 30% 8GiB``."""
    slices = row.get("slices") or []
    if not slices:
        return "-"
    first = slices[0]
    if first.get("profile"):
        return (f"{len(slices)}x " if len(slices) > 1 else "") + str(first["profile"])
    memory = format_mib(first["memory_mib"]) if first.get("memory_mib") else "whole"
    times = f"{len(slices)}x " if len(slices) > 1 else ""
    return f"{times}{share({**first, 'policy': row.get('policy')})} {memory}"


def used(row: Any) -> str:
    """Return the memory in use, summed over the slices of an allocation; ``-`` for a waiting request."""
    slices = row.get("slices") or []
    if not slices:
        return "-"
    return format_mib(sum(int(s.get("memory_used_mib") or 0) for s in slices))


def age(row: Any) -> str:
    """Return how long an allocation runs or has run; for a waiting request, how long it has waited."""
    started = row.get("started_at") or row.get("created_at")
    return format_duration(max(0.0, (row.get("ended_at") or time.time()) - started)) if started else "-"


PS_COLUMNS = (
    Column(title="ID", text=lambda r: r["id"]),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="TENANT", text=lambda r: r["tenant"]),
    Column(title="QUEUE", text=lambda r: r["queue"], wide=True),
    Column(title="GPU", text=lambda r: ",".join(str(s["device_index"]) for s in r["slices"]) or "-"),
    Column(title="MODE", text=lambda r: dash(r.get("mode"))),
    Column(title="POLICY", text=lambda r: dash(r.get("policy")), wide=True),
    Column(title="SLICE", text=amount),
    Column(title="USED", text=used, right=True),
    Column(title="AGE", text=age, right=True),
    Column(title="USER", text=lambda r: dash(r.get("user")), wide=True),
    Column(title="PIDS", text=lambda r: ",".join(str(p) for p in r.get("pids", [])) or "-", wide=True),
    Column(title="REASON", text=lambda r: dash(r.get("reason")), wide=True),
    Column(title="COMMAND", text=command_line),
)


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Include ended allocations.")
@output.option
def ps(everything: bool, fmt: str) -> None:
    """List running allocations and waiting requests."""
    rows = client().items(endpoints.LIST_ALLOCATIONS, query={"all": 1} if everything else None)
    output.emit("AllocationList", rows, PS_COLUMNS, fmt)


def _percent(name: str) -> Any:
    return lambda r: f"{r.get(name) or 0}%"


SMI_COLUMNS = (
    Column(title="GPU", text=lambda r: str(r["index"]), right=True),
    Column(title="MODEL", text=lambda r: r["model"]),
    Column(title="HEALTH", text=lambda r: r["health"]),
    Column(title="MODE", text=lambda r: dash(r.get("mode"))),
    Column(title="UTIL", text=_percent("utilization_percent"), right=True),
    Column(title="MEMORY USED", text=lambda r: format_mib(r["memory_used_mib"]), right=True),
    Column(title="ALLOCATED", text=lambda r: format_mib(r["memory_allocated_mib"]), right=True),
    Column(title="TOTAL", text=lambda r: format_mib(r["memory_mib"]), right=True),
    Column(title="CORES", text=_percent("core_allocated_percent"), right=True),
    Column(title="TEMP", text=lambda r: f"{r.get('temperature_c', 0)}C", right=True, wide=True),
    Column(title="POWER", text=lambda r: f"{r.get('power_w', 0):.0f}W", right=True, wide=True),
    Column(title="UUID", text=lambda r: r["uuid"], wide=True),
    Column(title="ALLOCATIONS", text=lambda r: ",".join(r.get("allocations", [])) or "-"),
)


def unmanaged_lines(devices: Sequence[Row]) -> list[str]:
    """Return a line for each device with unmanaged processes: their number, memory and PIDs."""
    found = []
    for device in devices:
        unmanaged = device.get("strangers") or []
        if unmanaged:
            processes = "1 process" if len(unmanaged) == 1 else f"{len(unmanaged)} processes"
            held = format_mib(sum(s["memory_mib"] for s in unmanaged))
            more = ", …" if len(unmanaged) > _PIDS_SHOWN else ""
            pids = ", ".join(str(s["pid"]) for s in unmanaged[:_PIDS_SHOWN]) + more
            found.append(f"GPU {device['index']}: {processes} without a slice, {held} (pid {pids})")
    return found


@click.command()
@output.option
def smi(fmt: str) -> None:
    """Show devices with their utilization and allocations, and unmanaged processes on them."""
    devices = client().items(endpoints.LIST_DEVICES)
    output.emit("DeviceList", devices, SMI_COLUMNS, fmt, name="uuid")
    if fmt in ("table", "wide"):
        for line in unmanaged_lines(devices):
            click.echo(line)


def _checked(identifier: str) -> str:
    """Return the ID of an allocation. Raises NOT_FOUND if it is empty or has a slash, as no ID has."""
    if not identifier or "/" in identifier:
        raise CalabashError(
            f"there is no allocation {identifier!r}",
            reason=Reason.NOT_FOUND,
            hint="`calabash ps` lists the allocations",
        )
    return identifier


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def release(ids: tuple[str, ...]) -> None:
    """Release allocations. Their programs get SIGTERM, and SIGKILL five seconds later.

    Several allocations are released concurrently.
    """
    pool = client()
    for_each(
        ids,
        lambda identifier: pool.send(endpoints.RELEASE, _checked(identifier), query={"force": 1}, timeout_s=30),
        done="released",
    )


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@output.option
def why(ids: tuple[str, ...], fmt: str) -> None:
    """Explain why requests wait, with numbers and possible remedies. Without ID, explain all waiting requests."""
    pool = client()
    names = ids or [row["id"] for row in pool.items(endpoints.LIST_ALLOCATIONS) if row["state"] == "pending"]
    found = [(name, pool.send(endpoints.EXPLAIN, _checked(name))) for name in names]
    if fmt in ("json", "yaml"):
        if len(ids) == 1:
            click.echo(output.document("Explanation", found[0][1], fmt))
        else:
            click.echo(output.document("ExplanationList", [body for _, body in found], fmt))
        return
    if fmt == "name":
        for _, body in found:
            click.echo(body.get("reason") or "")
        return
    if not found:
        click.echo("no request waits")
    for name, body in found:
        _explain(name, body)


def _explain(name: str, body: Row) -> None:
    click.echo(f"{name}: {body.get('state', 'pending')}" + (f" ({body['reason']})" if body.get("reason") else ""))
    for key in ("explanation", "summary"):
        if body.get(key):
            click.echo(f"  {body[key]}")
    for line in body.get("details") or []:
        click.echo(f"  - {line}")
    for line in body.get("suggestions") or []:
        click.echo(f"hint: {line}")
