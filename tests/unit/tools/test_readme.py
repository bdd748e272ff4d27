"""Claims of README.md: each names the test or the measurement that shows it."""

from __future__ import annotations

import re

from tools.links import ROOT

PROOFS = ("tests/", "docs/measurements/")


def test_every_claim_links_to_a_test_or_a_measurement() -> None:
    section = (ROOT / "README.md").read_text().partition("## What it does\n")[2].partition("\n## ")[0]
    table = section.partition("| claim | shown by |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.strip("| ").rsplit(" | ", 1) for row in table.splitlines()]
    assert len(rows) > 5
    for claim, proof in rows:
        links = re.findall(r"\]\(([^)#]+)", proof)
        assert links, claim
        assert all(link.startswith(PROOFS) for link in links), claim


def test_readme_says_that_no_real_card_was_used_while_all_measured_cards_are_simulated() -> None:
    pages = [path.read_text() for path in (ROOT / "docs" / "measurements").glob("*.md")]
    cards = [line for page in pages for line in page.splitlines() if line.startswith("* card: ")]
    assert cards
    all_simulated = all(card.startswith("* card: simulated") for card in cards)
    assert ("no real GPU has been used so far" in (ROOT / "README.md").read_text()) == all_simulated
