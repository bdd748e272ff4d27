"""``calabash top``: shares asked and got, memory caps and use, refreshed until interrupted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from calabash.cli.home import client
from calabash.model.units import format_mib, parse_duration_s

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


@click.command()
@click.option("--interval", default="1s", show_default=True, metavar="TIME")
@click.option("--once", is_flag=True, help="Print one reading and end.")
def top(interval: str, once: bool) -> None:
    """Watch devices and allocations live; Ctrl-C ends."""
    from rich.console import Console  # noqa: PLC0415 - only this command draws
    from rich.live import Live  # noqa: PLC0415

    pause_s = max(0.1, parse_duration_s(interval))
    pool = client()
    console = Console()

    def frame() -> Group:
        return screen(pool.get("/v1/devices")["items"], pool.get("/v1/allocations")["items"])

    if once or not console.is_terminal:
        console.print(frame())
        return
    with Live(frame(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(pause_s)
            live.update(frame(), refresh=True)


def screen(devices: list[dict[str, Any]], allocations: list[dict[str, Any]]) -> Group:
    """Both tables of one reading."""
    from rich.console import Group  # noqa: PLC0415

    return Group(_devices(devices), _allocations(allocations))


def _devices(devices: list[dict[str, Any]]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"{len(devices)} devices", title_justify="left", expand=True)
    for name, justify in (("GPU", "right"), ("model", "left"), ("health", "left"), ("busy", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    for name in ("memory used", "allocated", "total", "cores", "temp"):
        table.add_column(name, justify="right")
    for d in devices:
        health = d["health"] if d["health"] == "healthy" else f"[red]{d['health']}[/red]"
        table.add_row(
            str(d["index"]),
            d["model"],
            health,
            bar(d.get("utilization_percent") or 0),
            format_mib(d["memory_used_mib"]),
            format_mib(d["memory_allocated_mib"]),
            format_mib(d["memory_mib"]),
            f"{d['core_allocated_percent']}%",
            f"{d.get('temperature_c', 0)}C",
        )
    return table


def _allocations(allocations: list[dict[str, Any]]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    running = [a for a in allocations if a["state"] != "pending"]
    table = Table(
        title=f"{len(running)} allocations, {len(allocations) - len(running)} waiting",
        title_justify="left",
        expand=True,
    )
    for name in ("id", "tenant", "GPU", "policy", "share asked", "share got", "memory cap", "memory used", "command"):
        table.add_column(name, no_wrap=True)
    for a in allocations:
        if not a["slices"]:
            table.add_row(
                a["id"], a["tenant"], "-", a["policy"], "-", a["state"], "-", "-", " ".join(a["command"])[:40]
            )
        for s in a["slices"]:
            got = s.get("core_used_percent")
            table.add_row(
                a["id"],
                a["tenant"],
                str(s["device_index"]),
                a["policy"],
                f"{s['core_percent']}%",
                "-" if got is None else bar(got),
                format_mib(s["memory_mib"]) if s["memory_mib"] else "whole",
                format_mib(s.get("memory_used_mib") or 0),
                " ".join(a["command"])[:40],
            )
    return table


def bar(percent: float, width: int = 20) -> str:
    """``######              30%``: a bar and its number, readable without colour."""
    filled = round(min(100.0, max(0.0, percent)) * width / 100)
    return "█" * filled + "·" * (width - filled) + f" {percent:3.0f}%"
