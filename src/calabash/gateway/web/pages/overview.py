"""Front page: allocation compared with use, idle allocations, and reasons of waiting requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calabash.api import overview_routes
from calabash.api.overview import OverviewCell, OverviewReply
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.gateway.web.words import share

CELL = 14  # edge of a device in the map with its gap, in SVG units
LINKED_MAX = 256  # devices that are drawn one by one, each a link; more are drawn as one path per level
COLUMNS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMap:
    """Map of all devices as small squares.

    Args:
        columns: number of squares in a row.
        rows: number of rows.
        cells: for each device its position (x, y), its level and its data. Empty above LINKED_MAX devices.
        paths: above LINKED_MAX devices, one pair of a level and an SVG path with all squares of that level.
    """

    columns: int
    rows: int
    cells: list[tuple[int, int, str, OverviewCell]]
    paths: list[tuple[str, str]]


def level(cell: OverviewCell) -> str:
    """Return the allocated share of a device in quarters, "0" to "4"; ``bad`` if the device is not healthy."""
    if cell.health != "healthy":
        return "bad"
    return str(-(-min(100, cell.given_percent) // 25))


def device_map(cells: Sequence[OverviewCell]) -> DeviceMap:
    """Return the map of the devices, line by line in the order of ``cells``."""
    columns = min(COLUMNS, max(1, len(cells)))
    placed = [(i % columns * CELL, i // columns * CELL, level(c), c) for i, c in enumerate(cells)]
    paths: list[tuple[str, str]] = []
    if len(cells) > LINKED_MAX:
        edge = CELL - 3
        for name in sorted({p[2] for p in placed}):
            squares = "".join(f"M{x} {y}h{edge}v{edge}h-{edge}z" for x, y, its, _ in placed if its == name)
            paths.append((name, squares))
    return DeviceMap(columns=columns, rows=-(-len(cells) // columns), cells=[] if paths else placed, paths=paths)


def view(seen: OverviewReply) -> Shown:
    """Return the data of the page: allocation and use in percent of the capacity."""
    sick = sum(c.count for c in seen.health if c.name != "healthy")
    return {
        "seen": seen,
        "given_percent": share(seen.given, seen.devices),
        "busy_percent": share(seen.busy, seen.devices),
        "memory_given_percent": share(seen.memory_given_mib, seen.memory_mib),
        "memory_used_percent": share(seen.memory_used_mib, seen.memory_mib),
        "idle_percent": share(seen.idle_held_devices, seen.devices),
        "sick": sick,
        "map": device_map(seen.cells),
        "longest": max((c.count for c in seen.tenants), default=0),
    }


async def _read(visit: Visit) -> Shown:
    return view(await visit.pool.get(overview_routes.SHOW_OVERVIEW))


OVERVIEW_PAGES = (ConsolePage(path="/", title="Overview", template="overview.html", read=_read, section="overview"),)
