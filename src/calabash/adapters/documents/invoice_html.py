"""Invoice as one HTML page without scripts and external resources; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from calabash.adapters.documents.invoice_layout import HEADINGS, layout
from calabash.api.billing import InvoiceView

_STYLE = """\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
header{display:flex;justify-content:space-between;gap:2rem;flex-wrap:wrap}
h1{font-size:1.5rem;margin:0}
dl{display:grid;grid-template-columns:max-content auto;gap:.2rem 1rem}
dd{margin:0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;border-bottom:1px solid #ccc;text-align:right}
th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}
tfoot th{font-weight:normal}
tfoot tr:last-child *{font-weight:bold;border-bottom:3px double #1a1a1a}
@media print{body{margin:0}}
"""


def invoice_html(invoice: InvoiceView) -> str:
    shown = layout(invoice)
    seller = "<br>".join(escape(line) for line in shown.seller)
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in shown.facts)
    rows = "\n".join(f"<tr>{_cells('td', row)}</tr>" for row in shown.rows)
    sums = "\n".join(
        f'<tr><th scope="row" colspan="{len(HEADINGS) - 1}">{escape(name)}</th><td>{escape(amount)}</td></tr>'
        for name, amount in shown.sums
    )
    title = escape(shown.title)
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>{_STYLE}</style></head>
<body>
<header><h1>{title}</h1><p>{seller}</p></header>
<dl>{facts}</dl>
<table>
<thead><tr>{_cells('th scope="col"', HEADINGS)}</tr></thead>
<tbody>
{rows}
</tbody>
<tfoot>
{sums}
</tfoot>
</table>
</body>
</html>
"""


def _cells(tag: str, texts: Iterable[str]) -> str:
    end = tag.split(maxsplit=1)[0]
    return "".join(f"<{tag}>{escape(text)}</{end}>" for text in texts)
