"""Decimal amounts of money: rounding half to even, and divisions whose rounded results add up to the rounded sum."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from calabash.model.errors import CalabashError

_DIGITS = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV"), 0),
    **dict.fromkeys(("XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}
_DIGITS_USUAL = 2
ITEM_DIGITS = 4  # additional decimals of the amounts of items, compared with the amounts of lines


def check_currency(code: str) -> None:
    """Raise CalabashError if the text is not a currency code of three capital letters."""
    if re.fullmatch(r"[A-Z]{3}", code) is None:
        raise CalabashError(
            f"currency {code[:16]!r} is not a currency code", hint="write three capital letters, like EUR or USD"
        )


def digits(currency: str) -> int:
    """Return the number of decimals of a currency."""
    return _DIGITS.get(currency, _DIGITS_USUAL)


def rounded(amount: Fraction, currency: str) -> Decimal:
    """Return the amount rounded to the decimals of the currency, half to even."""
    places = digits(currency)
    return _decimal(round(amount * 10**places), places)


def apportion(amounts: Sequence[Fraction], currency: str) -> list[Decimal]:
    """Round amounts so that they add up to the rounded sum.

    All amounts are rounded down. The units of the last decimal that are then missing are given, one each, to the
    amounts with the largest remainders; of equal remainders the first. So each result differs from its exact value by
    less than one unit.
    """
    places = digits(currency)
    exact = [amount * 10**places for amount in amounts]
    coins = [coin.__floor__() for coin in exact]
    left = round(sum(exact, Fraction(0))) - sum(coins)
    by_remainder = sorted(range(len(exact)), key=lambda i: (coins[i] - exact[i], i))
    for index in by_remainder[:left]:
        coins[index] += 1
    return [_decimal(coin, places) for coin in coins]


def with_item_digits(amount: Decimal, currency: str) -> Decimal:
    """Return the amount with ITEM_DIGITS more decimals than the currency has."""
    return divide_by_weights(amount, [1], currency)[0]


def divide_by_weights(amount: Decimal, weights: Sequence[int], currency: str) -> list[Decimal]:
    """Divide an amount in proportion to weights, with ITEM_DIGITS more decimals than the currency has.

    The results add up to the amount exactly.
    """
    places = digits(currency) + ITEM_DIGITS
    coins, total, so_far, given = int(Fraction(amount) * 10**places), sum(weights), 0, 0
    parts: list[Decimal] = []
    for weight in weights:
        so_far += weight
        upto = coins * so_far // total
        parts.append(_decimal(upto - given, places))
        given = upto
    return parts


def _decimal(coins: int, places: int) -> Decimal:
    # Made from digits, because decimal arithmetic rounds to 28 digits.
    sign, figures = int(coins < 0), tuple(int(figure) for figure in str(abs(coins)))
    return Decimal((sign, figures, -places))
