"""Money: decimals of a currency, rounded once, half to even, so that parts add up to the rounded whole."""

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
ITEM_DIGITS = 4  # decimals that amounts of items have more than those of lines


def checked_currency(code: str) -> str:
    """The code. Raises CalabashError when it is not three capital letters."""
    if re.fullmatch(r"[A-Z]{3}", code) is None:
        raise CalabashError(f"currency {code[:16]!r} is not one", hint="three capital letters, like EUR or USD")
    return code


def digits(currency: str) -> int:
    """Decimal places of the currency's smallest coin."""
    return _DIGITS.get(currency, _DIGITS_USUAL)


def rounded(amount: Fraction, currency: str) -> Decimal:
    """To the smallest coin, half to even."""
    places = digits(currency)
    return _decimal(round(amount * 10**places), places)


def apportioned(amounts: Sequence[Fraction], currency: str) -> list[Decimal]:
    """Each rounded so that together they are the rounded sum: what is left over goes to the largest remainders, the first
    of equal ones. No part is further than one coin from its exact value."""
    places = digits(currency)
    exact = [amount * 10**places for amount in amounts]
    coins = [coin.__floor__() for coin in exact]
    left = round(sum(exact, Fraction(0))) - sum(coins)
    by_remainder = sorted(range(len(exact)), key=lambda i: (coins[i] - exact[i], i))
    for index in by_remainder[:left]:
        coins[index] += 1
    return [_decimal(coin, places) for coin in coins]


def finer(amount: Decimal, currency: str) -> Decimal:
    """Return the amount with ITEM_DIGITS more decimals than the currency has."""
    return divided(amount, [1], currency)[0]


def divided(amount: Decimal, weights: Sequence[int], currency: str) -> list[Decimal]:
    """Divide an amount in proportion to weights, with ITEM_DIGITS more decimals than the currency; the parts add up to it."""
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
    # Built from its digits: arithmetic of decimals would round at 28 of them.
    sign, figures = int(coins < 0), tuple(int(figure) for figure in str(abs(coins)))
    return Decimal((sign, figures, -places))
