"""Invoices as HTML and PDF: they have all amounts, and names are written as text and never interpreted as markup."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from calabash.adapters.documents.invoice_html import invoice_html
from calabash.adapters.documents.invoice_pdf import FONT_PLACES, invoice_pdf
from calabash.api.billing import InvoiceLine, InvoiceTax, InvoiceView
from calabash.model.errors import CalabashError

LINE = InvoiceLine(
    project="train",
    measure="borrowed",
    model="A100-80GB",
    mode="vgpu",
    preemptible=True,
    tariff="standard",
    price="lent",
    window="night",
    tier=1,
    committed=False,
    hours="12.500000",
    unit="GPU-h",
    unit_price="0.60",
    discount_percent="40",
    amount="4.50",
)
INVOICE = InvoiceView(
    number="2026-000007",
    state="issued",
    kind="invoice",
    tenant="vision",
    month="2026-11",
    from_s=1793487600.0,
    to_s=1796079600.0,
    time_zone="Europe/Berlin",
    currency="EUR",
    net="4.50",
    total="5.36",
    taxes=[InvoiceTax(name="VAT", percent="19", net="4.50", amount="0.86")],
    at=1796083200.0,
    by="root",
    reverses="",
    reversed_by="",
    seller=["Müller & Söhne"],
    lines=[LINE],
)
EVIL = '<script>alert("1")</script>&\'"'


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def _seen(invoice: InvoiceView) -> _Seen:
    parser = _Seen()
    parser.feed(invoice_html(invoice))
    return parser


def test_the_page_says_who_pays_whom_how_much_for_what() -> None:
    text = _seen(INVOICE).text
    for words in ("Invoice 2026-000007", "Müller & Söhne", "vision", "2026-11-01 to 2026-11-30", "12.500000", "tier 2"):
        assert words in text
    assert re.search(r"Net\s*4\.50\s*VAT 19 %\s*0\.86\s*Total EUR\s*5\.36", text)


def test_no_name_becomes_a_tag_or_an_attribute_of_the_page() -> None:
    line = msgspec.structs.replace(LINE, project=EVIL, model=EVIL, mode=EVIL, window=EVIL, unit=EVIL, hours=EVIL)
    tax = InvoiceTax(name=EVIL, percent="1", net="1", amount=EVIL)
    evil = msgspec.structs.replace(
        INVOICE,
        number=EVIL,
        tenant=EVIL,
        seller=[EVIL],
        lines=[line],
        taxes=[tax],
        reverses=EVIL,
        currency=EVIL,
        total=EVIL,
    )
    plain, seen = _seen(msgspec.structs.replace(INVOICE, reverses="x")), _seen(evil)
    assert seen.tags == plain.tags
    assert seen.attributes == plain.attributes
    assert seen.text.count(EVIL) >= 10


def test_the_document_needs_no_font_in_it_for_the_letters_that_all_readers_have() -> None:
    data = invoice_pdf(INVOICE, font_places=())
    assert data.startswith(b"%PDF-")
    assert b"/FontFile" not in data
    drawn = b"".join(zlib.decompress(s) for s in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL))
    for words in (b"Invoice 2026-000007", b"12.500000", b"5.36", "Müller & Söhne".encode("latin-1")):
        assert words in drawn


def test_a_name_in_other_letters_is_drawn_with_a_font_of_this_machine_or_refused_with_a_hint(tmp_path: Path) -> None:
    greek = msgspec.structs.replace(INVOICE, seller=["Ωμέγα Ltd"])
    with pytest.raises(CalabashError, match="Ω") as failure:
        invoice_pdf(greek, font_places=(tmp_path,))
    assert "html" in failure.value.hint
    if not [font for place in FONT_PLACES for font in place.rglob("DejaVuSans.ttf")]:
        pytest.skip("no font with Greek letters is installed (Debian package fonts-dejavu-core)")
    assert b"/FontFile2" in invoice_pdf(greek)


_RENDER = """
import datetime, sys, time
moment = float(sys.argv[1])
time.time = lambda: moment
class Moment(datetime.datetime):
    now = classmethod(lambda cls, tz=None: datetime.datetime.fromtimestamp(moment, tz))
    utcnow = classmethod(lambda cls: datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).replace(tzinfo=None))
datetime.datetime = Moment
import msgspec
from calabash.api.billing import InvoiceView
from calabash.adapters.documents.{module} import {module}
invoice = msgspec.json.decode(sys.stdin.buffer.read(), type=InvoiceView)
found = {module}(invoice)
sys.stdout.buffer.write(found if isinstance(found, bytes) else found.encode())
"""


def _rendered(module: str, invoice: InvoiceView, *, moment_s: float, seed: str, zone: str) -> bytes:
    """Return the document that another process makes.

    The process has another time, time zone and hash seed, on which the document must not depend.
    """
    return subprocess.run(
        [sys.executable, "-c", _RENDER.replace("{module}", module), str(moment_s)],
        input=msgspec.json.encode(invoice),
        env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone},
        check=True,
        capture_output=True,
        timeout=120,
    ).stdout


@pytest.mark.parametrize("module", ["invoice_pdf", "invoice_html", "invoice_csv"])
@pytest.mark.parametrize("seller", ["Müller & Söhne", "Ωμέγα Ltd"])
def test_document_of_an_invoice_is_the_same_in_every_process_and_at_every_time(module: str, seller: str) -> None:
    if "Ω" in seller and not [f for p in FONT_PLACES for f in p.rglob("DejaVuSans.ttf")]:
        pytest.skip("no font with Greek letters is installed (Debian package fonts-dejavu-core)")
    invoice = msgspec.structs.replace(INVOICE, seller=[seller], seal="ab" * 32)
    first = _rendered(module, invoice, moment_s=1.8e9, seed="1", zone="UTC")
    assert first
    assert _rendered(module, invoice, moment_s=1.9e9, seed="2", zone="Asia/Tokyo") == first


def test_creation_date_of_an_issued_pdf_is_that_of_the_issue_and_other_contents_have_another_identifier() -> None:
    data = invoice_pdf(INVOICE)
    assert b"/CreationDate (D:20261201000000Z)" in data
    other = invoice_pdf(msgspec.structs.replace(INVOICE, total="5.37"))
    identifiers = [re.search(rb"/ID \[<(\w+)>", each) for each in (data, other)]
    assert all(identifiers)
    assert len({found[1] for found in identifiers if found}) == 2


def test_a_long_invoice_has_pages_with_their_numbers() -> None:
    many = msgspec.structs.replace(INVOICE, lines=[LINE] * 200)
    assert len(re.findall(rb"/Type /Page\b(?!s)", invoice_pdf(many))) > 3
