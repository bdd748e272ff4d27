"""``calabash top``: a live view of totals, devices and allocations, with their shares, memory limits and use."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli.grant_line import share
from calabash.cli.home import client
from calabash.cli.live_view import LiveView, coloured, is_terminal
from calabash.cli.output import Column, Row, command_line, dash, table, terminal_width
from calabash.cli.pool.view import unmanaged_lines
from calabash.model.units import format_mib, parse_duration_s

SORTS = ("device", "compute", "memory", "tenant")
_STYLES = (  # pattern of text and its style on terminals; later ones replace earlier ones
    (r"(?m)^[A-Z][A-Z /]+$", "bold"),
    (r"█+(?=·* +[0-9]{1,2}%)", "green"),
    (r"█+(?=·* +[78][0-9]%)", "yellow"),
    (r"█+(?=·* +(9[0-9]|[0-9]{3})%)", "red"),
    (r"\b(degraded|[1-9][0-9]* waiting)\b", "yellow"),
    (r"\b(unhealthy|failed|[1-9][0-9]* not healthy)\b", "red"),
)
sort_option = click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="device",
    show_default=True,
    help="Order of the slices: by device, by compute or memory in use (largest first), or by tenant.",
)


@click.command()
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Time between two updates.")
@click.option("--once", is_flag=True, help="Print the present state once and exit.")
@sort_option
def top(interval: str, sort: str, *, once: bool) -> None:
    """Show totals, devices, slices and waiting requests, and update the view until Ctrl-C.

    Colours are used on terminals only, and not if NO_COLOR is set.
    """
    pause_s = max(0.1, parse_duration_s(interval))
    pool = client()

    def frame(width: int) -> str:
        devices, allocations = pool.items(endpoints.LIST_DEVICES), pool.items(endpoints.LIST_ALLOCATIONS)
        return screen(devices, allocations, width, sort=sort)

    show(frame, 0.0 if once else pause_s)


def show(frame: Callable[[int], str], pause_s: float) -> None:
    """Print ``frame(width)`` every ``pause_s`` seconds until Ctrl-C; only once if that is 0 or stdout no terminal."""
    if not is_terminal(sys.stdout):
        click.echo(frame(0))  # a pipe has no width
        return
    if not pause_s:
        click.echo(coloured(frame(terminal_width()), _STYLES), color=True)
        return
    text = frame(terminal_width())  # an error of the first reading is printed as usual
    try:
        with LiveView(sys.stdout, whole=True) as view:
            while True:
                view.update(text, _STYLES)
                time.sleep(pause_s)
                text = frame(terminal_width())  # the width follows the terminal's window
    except KeyboardInterrupt:
        return


def screen(
    devices: list[dict[str, Any]], allocations: list[dict[str, Any]], width: int = 0, *, sort: str = "device"
) -> str:
    """Return totals and tables of devices, their unmanaged processes, slices and waiting requests.

    Args:
        width: number of columns; 0 for no limit.
        sort: order of the slices, one of ``SORTS``.
    """
    waiting = [a for a in allocations if a["state"] == "pending"]
    slices = ordered([{**a, **part} for a in allocations for part in a["slices"]], sort)
    programs = len({row["id"] for row in slices})
    shown = [
        *header(devices, f"{programs} program{'' if programs == 1 else 's'}", len(waiting), width),
        "",
        table(DEVICES, devices, width),
        *(line if not width else line[:width] for line in unmanaged_lines(devices)),
    ]
    blocks = ["\n".join(shown), table(_SLICES, slices, width)]
    if waiting:
        blocks.append(table(_WAITING, waiting, width))
    return "\n\n".join(blocks)


def header(devices: Sequence[Row], programs: str, waiting: int, width: int = 0) -> list[str]:
    """Return the totals as lines of at most ``width`` columns: devices, memory, compute, programs, waiting requests."""
    used = [row["memory_used_mib"] for row in devices if row.get("memory_used_mib") is not None]
    busy = [row["utilization_percent"] for row in devices if row.get("utilization_percent") is not None]
    wrong = sum(row["health"] != "healthy" for row in devices)
    total = format_mib(sum(row["memory_mib"] for row in devices))
    promised = sum(row["core_allocated_percent"] for row in devices)
    fields = [
        f"{len(devices)} device{'' if len(devices) == 1 else 's'}" + (f" ({wrong} not healthy)" if wrong else ""),
        f"memory {format_mib(sum(used)) if used else '-'} of {total} used",
        f"compute {f'{sum(busy):.0f}%' if busy else '-'} of {100 * len(devices)}% busy, {promised}% promised",
        programs,
        f"{waiting} waiting",
    ]
    lines = [fields[0]]
    for text in fields[1:]:
        if width and len(lines[-1]) + len(text) + 3 > width:
            lines.append(text)
        else:
            lines[-1] += f"   {text}"
    return [line if not width else line[:width] for line in lines]


def ordered(slices: Sequence[Row], sort: str) -> list[Row]:
    """Return slices in the order of ``--sort``; slices without a known use are last."""
    if sort == "compute":
        return sorted(slices, key=lambda row: -(row.get("core_used_percent") or 0))
    if sort == "memory":
        return sorted(slices, key=lambda row: -(row.get("memory_used_mib") or 0))
    if sort == "tenant":
        return sorted(slices, key=lambda row: (row.get("tenant") or row.get("namespace", ""), row["device_index"]))
    return sorted(slices, key=lambda row: (row.get("node", ""), row["device_index"]))


def bar(percent: float, width: int = 10) -> str:
    """Return a bar of ``width`` characters with its number, such as ``███·······  30%``."""
    filled = round(min(100.0, max(0.0, percent)) * width / 100)
    return "█" * filled + "·" * (width - filled) + f" {percent:3.0f}%"


def _busy(row: Row) -> str:
    return "-" if row.get("utilization_percent") is None else bar(row["utilization_percent"])


def _used(row: Row) -> str:
    return "-" if row.get("memory_used_mib") is None else format_mib(row["memory_used_mib"])


def capped(row: Row) -> str:
    """Return the memory limit, ``20GiB``; with spill memory also the part guaranteed on the device: ``20GiB (8GiB)``."""
    if not row["memory_mib"]:
        return "whole"
    promised = f" ({format_mib(row['memory_mib'] - row['spill_mib'])})" if row.get("spill_mib") else ""
    return format_mib(row["memory_mib"]) + promised


GOT = Column(
    title="SHARE USED", text=lambda r: "-" if r.get("core_used_percent") is None else bar(r["core_used_percent"])
)
USED = Column(title="USED", text=_used, right=True)
REASON = Column(title="REASON", text=lambda r: dash(r.get("reason")))
SHARE = (
    Column(title="GPU", text=lambda r: str(r["device_index"]), right=True),
    Column(title="SHARE", text=share, right=True),
    GOT,
    Column(title="MEMORY LIMIT", text=capped, right=True),
    USED,
)
DEVICES = (
    Column(title="GPU", text=lambda r: str(r["index"]), right=True),
    Column(title="MODEL", text=lambda r: r["model"].removeprefix("NVIDIA ")),
    Column(title="HEALTH", text=lambda r: r["health"]),
    Column(title="BUSY", text=_busy),
    USED,
    Column(title="TOTAL", text=lambda r: format_mib(r["memory_mib"]), right=True),
    Column(title="CORES", text=lambda r: f"{r['core_allocated_percent']}%", right=True),
)
_SLICES = (
    Column(title="ID", text=lambda r: r["id"]),
    Column(title="TENANT", text=lambda r: r["tenant"]),
    *SHARE,
    Column(title="COMMAND", text=command_line),
)
_WAITING = (
    Column(title="PENDING", text=lambda r: r["id"]),
    Column(title="TENANT", text=lambda r: r["tenant"]),
    Column(title="QUEUE", text=lambda r: r["queue"]),
    REASON,
    Column(title="COMMAND", text=command_line),
)
