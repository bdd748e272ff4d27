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


def test_readme_names_every_real_gpu_whose_measurements_are_committed() -> None:
    pages = [path.read_text() for path in (ROOT / "docs" / "measurements").glob("*.md")]
    devices = [line for page in pages for line in page.splitlines() if re.match(r"\* (card|device): ", line)]
    real = [line for line in devices if ": simulated" not in line]
    assert len(real) < len(devices)
    models = {found for line in real for found in re.findall(r"NVIDIA (\w+)", line)}
    assert models == {"H200"}
    readme = (ROOT / "README.md").read_text()
    assert all(f"one {model}" in readme for model in models)
