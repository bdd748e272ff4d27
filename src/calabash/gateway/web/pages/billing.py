"""Pages of usage with a plot, tariffs, invoices, and a single invoice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from urllib.parse import urlencode

from calabash.adapters.documents.invoice_csv import invoice_csv
from calabash.adapters.documents.invoice_html import invoice_html
from calabash.adapters.documents.invoice_pdf import invoice_pdf  # now: later the gateway may have no right to read it
from calabash.api import billing, billing_routes
from calabash.gateway.web.lists import part_of
from calabash.gateway.web.pages.page import ConsolePage, PageFile, Shown, Visit
from calabash.gateway.web.words import share
from calabash.model.errors import CalabashError, Reason

DAYS = {"1": "one day", "7": "a week", "30": "30 days", "90": "90 days"}
BY = ("tenant", "project", "user", "device", "model", "mode")
POINTS = 24
SERIES_MAX = 8  # the number of colours; other series are in the table only
DAY_S = 86_400.0


def period(visit: Visit) -> tuple[float, float]:
    """Return the begin and end of the period that the URL names, in seconds since the epoch.

    The URL names a first and a last day in UTC, or else a number of days until now.

    Raises:
        CalabashError: BAD_REQUEST if the last day is before the first.
    """
    try:
        begin = datetime.fromisoformat(visit.query.get("from", "")[:10]).replace(tzinfo=UTC)
        end = datetime.fromisoformat(visit.query.get("to", "")[:10]).replace(tzinfo=UTC) + timedelta(days=1)
    except ValueError:
        days = visit.query.get("days", "7")
        return visit.now_s - float(days if days in DAYS else "7") * DAY_S, visit.now_s
    if begin >= end:
        raise CalabashError("the last day is before the first", reason=Reason.BAD_REQUEST, hint="exchange them")
    return begin.timestamp(), end.timestamp()


def summed_by(visit: Visit) -> str:
    """Return the field by which usage is summed, from the URL; ``tenant`` if the URL names no valid field."""
    asked = visit.query.get("by", "tenant")
    return asked if asked in BY else "tenant"


def usage(sums: billing.UsageSums, by: str, visit: Visit) -> Shown:
    """Return the data of the usage table, most hours first, with the percentage of GPU hours that were busy."""
    rows = sorted(sums.items, key=lambda s: -s.gpu_hours)
    return {
        "by": by,
        "kinds": BY,
        "spans": DAYS,
        "part": part_of(rows, visit.query),
        "most": max((row.gpu_hours for row in rows), default=0.0),
        "hours": sum(row.gpu_hours for row in rows),
        "busy": share(sum(row.busy_hours for row in rows), sum(row.gpu_hours for row in rows)),
        "idle_hours": sum(row.idle_hours for row in rows),
        "memory_hours": sum(row.memory_gib_hours for row in rows),
        "sums": sums,
        "plot": "/usage/plot?" + urlencode({k: v for k, v in {**visit.query, "by": by}.items() if k != "page"}),
    }


def plotted(parts: Sequence[billing.UsageSums], by: str) -> Shown:
    """Return the data of a plot by uPlot: GPU hours in each interval, for the SERIES_MAX names with the most hours.

    Args:
        parts: sums of usage of consecutive intervals.
        by: field of the sums that has the names, for example ``tenant``.
    """
    total: dict[str, float] = {}
    for part in parts:
        for row in part.items:
            total[getattr(row, by)] = total.get(getattr(row, by), 0.0) + row.gpu_hours
    names = sorted(total, key=lambda name: (-total[name], name))[:SERIES_MAX]
    rows = [{getattr(row, by): row.gpu_hours for row in part.items} for part in parts]
    return {
        "times": [part.to_s for part in parts],
        "series": [{"name": n, "unit": "GPU hours", "values": [round(r.get(n, 0.0), 4) for r in rows]} for n in names],
    }


async def _sums(visit: Visit, by: str, from_s: float, to_s: float) -> billing.UsageSums:
    asked = {"by": by, "from": f"{from_s:.3f}", "to": f"{to_s:.3f}"}
    return await visit.pool.get(billing_routes.SHOW_USAGE, query=asked)


async def _usage(visit: Visit) -> Shown:
    by = summed_by(visit)
    return usage(await _sums(visit, by, *period(visit)), by, visit)


async def _plot(visit: Visit) -> Shown:
    by, (begin, end) = summed_by(visit), period(visit)
    edges = [begin + (end - begin) * i / POINTS for i in range(POINTS + 1)]
    asked = (_sums(visit, by, a, b) for a, b in pairwise(edges))
    return plotted(await asyncio.gather(*asked), by)


async def _tariffs(visit: Visit) -> Shown:
    tariffs = (await visit.pool.get(billing_routes.LIST_TARIFFS)).items
    return {"part": part_of(sorted(tariffs, key=lambda t: (t.name, t.valid_from)), visit.query)}


async def _invoices(visit: Visit) -> Shown:
    asked = {name: visit.query[name] for name in ("tenant", "month") if visit.query.get(name)}
    found = await visit.pool.pages(billing_routes.LIST_INVOICES, query=asked)
    states = [i for i in found if not visit.query.get("state") or i.state == visit.query["state"]]
    return {"part": part_of(states, visit.query, total=len(found))}


async def _invoice(visit: Visit) -> Shown:
    return {"invoice": await visit.pool.get(billing_routes.SHOW_INVOICE, visit.path["number"])}


def _number(shown: Shown) -> str:
    return str(shown["invoice"].number)


def _pdf(shown: Shown) -> bytes:
    return invoice_pdf(shown["invoice"])


INVOICE_FILES = {
    "pdf": PageFile(media_type="application/pdf", write=_pdf, name=_number),
    "html": PageFile(media_type="text/html", write=lambda shown: invoice_html(shown["invoice"]).encode(), name=_number),
    "csv": PageFile(media_type="text/csv", write=lambda shown: invoice_csv(shown["invoice"]).encode(), name=_number),
}
BILLING_PAGES = (
    ConsolePage(path="/usage", title="Usage", template="usage.html", read=_usage, section="usage"),
    ConsolePage(path="/usage/plot", title="Usage", template="plot.html", read=_plot, section="usage"),
    ConsolePage(path="/tariffs", title="Tariffs", template="tariffs.html", read=_tariffs, section="tariffs"),
    ConsolePage(path="/invoices", title="Invoices", template="invoices.html", read=_invoices, section="invoices"),
    ConsolePage(
        path="/invoices/{number}",
        title="Invoice",
        template="invoice.html",
        read=_invoice,
        section="invoices",
        files=INVOICE_FILES,
    ),
)
