"""Page of the simulated node: its devices, their faults, and buttons that inject and clear faults."""

from __future__ import annotations

from calabash.api import simulator_routes
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit

FAULTS = (
    ("xid", "79", "Fell off the bus", "XID 79: the device must be reset"),
    ("xid", "48", "Double-bit error", "XID 48: uncorrectable memory error"),
    ("ecc-double", "", "Uncorrected ECC", "increments the error counters, without an XID"),
    ("slow", "300%", "Slow", "kernels take three times as long"),
    ("lost", "", "Lost", "the device does not respond"),
    ("recover", "", "Recover", "removes all faults"),
)


async def _read(visit: Visit) -> Shown:
    return {"node": await visit.pool.get(simulator_routes.SHOW_SIMULATOR), "faults": FAULTS}


SIMULATOR_PAGES = (
    ConsolePage(
        path="/simulator",
        title="Simulated node",
        template="simulator.html",
        read=_read,
        section="simulator",
        needs="shut-down",
    ),
)
