"""Amounts of money: a decimal number and a currency. Money is never a float."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from calabash.model.errors import CalabashError

_WRITTEN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,4})?)\s?([A-Z]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Amount in one currency; ``currency`` is the three-letter code of ISO 4217."""

    amount: Decimal
    currency: str

    def __str__(self) -> str:
        return f"{self.amount}{self.currency}"


def parse_money(text: str) -> Money:
    """Parse ``5000EUR`` or ``12.50 USD``: a number with at most four decimals, and a currency code.

    Raises:
        CalabashError(BAD_REQUEST): the text is not such an amount.
    """
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise CalabashError(
            f"amount {text[:40]!r} is not an amount of money", hint="write the number and the currency, like 5000EUR"
        )
    return Money(amount=Decimal(match[1]), currency=match[2])
