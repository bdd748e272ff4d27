"""Random histories of a tenant: tariffs in versions, guarantees, usage of some months, credit notes and reversals."""

from __future__ import annotations

import copy
import random
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tests.oracle.invoices import Use, month_of

TENANT = "vision"
ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York")
MONTHS = ("2026-02", "2026-03", "2026-04", "2026-05", "2026-09", "2026-10", "2026-11", "2026-12")
SECOND = 1_000_000


class BillingHistory:
    """Input of one random history: tariffs, guarantees and usage of some months."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.zone = rng.choice(ZONES)
        first = rng.randrange(len(MONTHS) - 2)
        self.months = MONTHS[first : first + rng.choice((1, 2, 3))]
        self.tariffs = self._tariffs()
        begin, end = month_of(self.months[0], ZoneInfo(self.zone))[0], month_of(self.months[-1], ZoneInfo(self.zone))[1]
        later = sorted((rng.randrange(begin, end), rng.randrange(0, 3000)) for _ in range(rng.choice((0, 0, 1, 2))))
        self.guarantees = [(0, rng.choice((0, 500, 1000, 2500))), *later]
        self.uses = [use for month in self.months for use in self._uses(month)]

    def _uses(self, month: str) -> list[Use]:
        rng = self.rng
        begin, end = month_of(month, ZoneInfo(self.zone))
        found = []
        for _ in range(rng.choice((0, 1, 3, 6))):
            since = rng.randrange(begin, end)
            length = rng.choice((rng.randrange(1, 3600 * SECOND), rng.randrange(1, 4 * 86_400 * SECOND)))
            found.append(
                Use(
                    project=rng.choice(("train", "serve")),
                    model=rng.choice(("A100-80GB", "H100")),
                    mode=rng.choice(("vgpu", "exclusive")),
                    preemptible=rng.random() < 0.3,
                    begin=since,
                    end=since + length,
                    share=rng.choice((10, 33, 50, 100)),
                    memory=rng.choice((0, 2048, 40_961)),
                    busy=rng.randrange(length + 1),
                    idle=rng.randrange(length + 1),
                )
            )
        return found

    def _money(self, most: float = 4.0) -> str:
        return f"{self.rng.uniform(0, most):.{self.rng.choice((0, 2, 3, 5))}f}"

    def _price(self, name: str, measure: str) -> dict[str, Any]:
        rng = self.rng
        price: dict[str, Any] = {"name": name, "measure": measure, "price": self._money()}
        if rng.random() < 0.3:
            price["models"] = [rng.choice(("a100", "H100"))]
        if rng.random() < 0.2:
            price["modes"] = [rng.choice(("vgpu", "exclusive"))]
        if measure in ("guaranteed", "borrowed", "memory") and rng.random() < 0.3:
            price["window"] = rng.choice(("night", "weekend"))
        price["tiers"] = self._steps()
        return price

    def _steps(self) -> list[dict[str, str]]:
        rng = self.rng
        above = sorted(rng.sample(range(1, 120), rng.choice((0, 0, 1, 2))))
        return [{"above": f"{hours}{rng.choice(('', '.5'))}", "price": self._money()} for hours in above]

    def _terms(self, name: str) -> dict[str, Any]:
        rng = self.rng
        measures = ("guaranteed", "guaranteed", "borrowed", "borrowed", "memory", "busy", "idle")
        prices = [self._price(f"p{number}", measure) for number, measure in enumerate(measures) if rng.random() < 0.75]
        return {
            "name": name,
            "currency": rng.choice(("EUR", "EUR", "EUR", "JPY", "KWD")),
            "time_zone": self.zone,
            "tenants": [],
            "windows": [
                {"name": "night", "days": [], "begin": "22:00", "end": "06:00"},
                {"name": "weekend", "days": ["sat", "sun"], "begin": "00:00", "end": "24:00"},
            ],
            "prices": prices,
            "commitments": self._commitments(prices),
            "preemptible_discount_percent": rng.choice(("0", "12.5", "40")),
            "tax": {"name": "VAT", "percent": rng.choice(("0", "7", "19"))},
        }

    def _commitments(self, prices: list[dict[str, Any]]) -> list[dict[str, str]]:
        rng = self.rng
        chosen = [price["name"] for price in prices if rng.random() < 0.2]
        return [{"of": name, "hours": str(rng.choice((0, 7, 50))), "price": self._money()} for name in chosen]

    def _tariffs(self) -> list[dict[str, Any]]:
        """Return the versions of a tariff for all tenants, and sometimes those of a tariff for the tenant alone."""
        rng = self.rng
        found: list[dict[str, Any]] = []
        first = date.fromisoformat(f"{self.months[0]}-01")
        span = 31 * len(self.months)
        for name in ("standard", "own")[: rng.choice((1, 1, 2))]:
            terms = self._terms(name)
            if name == "own":
                terms["tenants"] = [TENANT, "speech"]
                terms["currency"] = found[0]["currency"] if rng.random() < 0.8 else terms["currency"]
            days = sorted(rng.sample(range(-40, span), rng.choice((1, 2, 3, 4))))
            if name == "standard" and rng.random() < 0.8:
                days[0] = -60
            for day in days:
                version = {**copy.deepcopy(terms), "valid_from": str(first + timedelta(days=day)), "valid_to": None}
                if rng.random() < 0.2:
                    version["valid_to"] = str(first + timedelta(days=day + rng.randrange(1, 40)))
                found.append(version)
                self._change(terms)
        return found

    def _change(self, terms: dict[str, Any]) -> None:
        """Change at most one of the terms, for the next version of the tariff."""
        rng = self.rng
        what = rng.choice(("nothing", "price", "tiers", "commitments", "tax", "discount", "models", "gone", "currency"))
        price = rng.choice(terms["prices"]) if terms["prices"] else {}
        if what == "price" and price:
            price["price"] = self._money()
        elif what == "tiers" and price:
            price["tiers"] = self._steps()
        elif what == "models" and price:
            price["models"] = [rng.choice(("a100", "H100"))]
        elif what == "commitments":
            terms["commitments"] = self._commitments(terms["prices"])
        elif what == "tax":
            terms["tax"] = {"name": "VAT", "percent": rng.choice(("0", "7", "19"))}
        elif what == "discount":
            terms["preemptible_discount_percent"] = rng.choice(("0", "12.5", "40"))
        elif what == "gone" and price:
            terms["prices"].remove(price)
            terms["commitments"] = [c for c in terms["commitments"] if c["of"] != price["name"]]
        elif what == "currency" and rng.random() < 0.3:
            terms["currency"] = rng.choice(("EUR", "JPY"))
