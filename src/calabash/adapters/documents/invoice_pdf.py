"""Invoice as PDF.

Letters of the standard fonts need no font in the file. Other letters are shown with a font of this machine, of which a
subset is embedded. The file depends on the invoice, the fonts and the library only: the same invoice gives the same
bytes, so that a tenant can compare its digest.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fpdf import FPDF
from fpdf.enums import XPos, YPos
from fpdf.fonts import FontFace

from calabash.adapters.documents.invoice_layout import HEADINGS, InvoiceLayout, layout
from calabash.api.billing import InvoiceView
from calabash.model.errors import CalabashError, Reason

STANDARD_FONT = "Helvetica"
FONT_PLACES = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"))
FONT_FILES = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf")
_WIDTHS = (24, 76, 26, 16, 22, 26)
_LINE_MM = 5.5


def invoice_pdf(invoice: InvoiceView, *, font_places: tuple[Path, ...] = FONT_PLACES) -> bytes:
    """Return the invoice as a PDF file.

    Args:
        font_places: directories in which fonts are searched.

    Raises CalabashError(UNSUPPORTED) if no font of this machine has all letters of the invoice.
    """
    shown = layout(invoice)
    page = _Document(footer_text=shown.title)
    page.set_title(shown.title)
    page.set_creator("Calabash")
    page.set_creation_date(datetime.fromtimestamp(invoice.at, UTC))
    font = _font(page, shown, font_places)
    page.font = font
    page.add_page()
    page.set_font(font, size=16)
    page.cell(0, 9, shown.title, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.set_font(font, size=9)
    for line in shown.seller:
        page.cell(0, _LINE_MM, line, align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    for name, value in shown.facts:
        page.cell(35, _LINE_MM, name)
        page.multi_cell(0, _LINE_MM, value, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.ln(4)
    plain = FontFace(emphasis=None)
    alignments = ("LEFT", "LEFT", "RIGHT", "LEFT", "RIGHT", "RIGHT")
    with page.table(
        col_widths=_WIDTHS,
        text_align=alignments,
        line_height=_LINE_MM,
        borders_layout="HORIZONTAL_LINES",
        headings_style=plain,
    ) as table:
        for row in (HEADINGS, *shown.rows):
            table.row(row)
        for name, amount in shown.sums:
            total = table.row()
            total.cell(name, colspan=len(HEADINGS) - 1, align="RIGHT")
            total.cell(amount)
    return bytes(page.output())


class _Document(FPDF):
    """A4 document with page numbers in the footer."""

    def __init__(self, *, footer_text: str) -> None:
        super().__init__(format="A4")
        self.footer_text = footer_text
        self.font = STANDARD_FONT

    def footer(self) -> None:
        self.set_y(-15)
        self.set_font(self.font, size=8)
        self.cell(0, 8, f"{self.footer_text} - {self.page_no()} / {{nb}}", align="C")


def _font(page: FPDF, shown: InvoiceLayout, places: tuple[Path, ...]) -> str:
    texts = [shown.title, *shown.seller, *(t for pair in (*shown.facts, *shown.sums) for t in pair)]
    texts += [cell for row in shown.rows for cell in row]
    text = "".join(texts)
    if all(_standard(letter) for letter in set(text)):
        return STANDARD_FONT
    found = (path for name in FONT_FILES for place in places for path in sorted(place.rglob(name)))
    for path in found:
        family = path.stem
        page.add_font(family, fname=path)
        if set(map(ord, text)) <= set(getattr(page.fonts[family.lower()], "cmap", ())):
            return family
    strange = sorted({letter for letter in text if not _standard(letter)})
    raise CalabashError(
        f"no font of this machine has all of the letters {' '.join(strange[:10])}",
        reason=Reason.UNSUPPORTED,
        hint="install one (Debian: fonts-dejavu-core), or write the invoice as html",
    )


def _standard(letter: str) -> bool:
    return letter.isprintable() and ord(letter) < 256
