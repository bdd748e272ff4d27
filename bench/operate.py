"""Cost of an operator's part of the product: scrapes, invoices, metering, the API under load, the console's first page.

Each part is a module of its own (``_operate_*``).
"""

from __future__ import annotations

from bench._operate_api import measure_api
from bench._operate_console import measure_console
from bench._operate_invoice import measure_invoice
from bench._operate_metering import measure_metering
from bench._operate_metrics import measure_scrape
from bench._report import Report, run

NAME, TITLE = "operate", "Operating a pool"
PARTS = (measure_scrape, measure_invoice, measure_metering, measure_api, measure_console)


def measure(report: Report) -> None:
    """Measure all parts, one after the other."""
    for part in PARTS:
        part(report)


if __name__ == "__main__":
    run(NAME, TITLE, measure)
