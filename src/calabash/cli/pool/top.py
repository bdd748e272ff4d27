"""``calabash top``: a live view of devices and allocations, with their shares, memory caps and use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli.grant_line import share
from calabash.cli.home import client
from calabash.cli.output import Column, Row, command_line, dash, table
from calabash.cli.pool.view import unmanaged_lines
from calabash.model.units import format_mib, parse_duration_s


@click.command()
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Time between two updates.")
@click.option("--once", is_flag=True, help="Print the present state once and exit.")
def top(interval: str, once: bool) -> None:
    """Show devices, slices and waiting requests, and update the view until Ctrl-C."""
    pause_s = max(0.1, parse_duration_s(interval))
    pool = client()

    def frame(width: int) -> str:
        return screen(pool.items(endpoints.LIST_DEVICES), pool.items(endpoints.LIST_ALLOCATIONS), width)

    show(frame, 0.0 if once else pause_s)


def show(frame: Callable[[int], str], pause_s: float) -> None:
    """Print ``frame(width)`` every ``pause_s`` seconds until Ctrl-C; only once if that is 0 or stdout no terminal."""
    from rich.console import Console  # noqa: PLC0415 - only this command draws
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()

    def text() -> str:
        # the console's width follows the terminal's window; a pipe has no width
        return frame(console.width if console.is_terminal else 0)

    if not pause_s or not console.is_terminal:
        click.echo(text())
        return
    try:
        with Live(Text(text(), no_wrap=True), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(pause_s)
                live.update(Text(text(), no_wrap=True), refresh=True)
    except KeyboardInterrupt:
        return


def screen(devices: list[dict[str, Any]], allocations: list[dict[str, Any]], width: int = 0) -> str:
    """Return tables of devices, their unmanaged processes, slices and waiting requests, cut to ``width`` columns unless 0."""
    waiting = [a for a in allocations if a["state"] == "pending"]
    slices = [{**a, **part} for a in allocations for part in a["slices"]]
    shown = [
        table(DEVICES, devices, width),
        *(line if not width else line[:width] for line in unmanaged_lines(devices)),
    ]
    blocks = ["\n".join(shown), table(_SLICES, slices, width)]
    if waiting:
        blocks.append(table(_WAITING, waiting, width))
    return "\n\n".join(blocks)


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
