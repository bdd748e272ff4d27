"""The benchmark of scrapes reads a pool of the present API."""

from __future__ import annotations

import pytest
from bench import _operate_metrics
from bench._report import Report


def test_benchmark_of_scrapes_measures_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DEVICES": 4, "SLICES": 8, "QUEUES": 2, "TENANTS": 2}.items():
        monkeypatch.setattr(_operate_metrics, name, value)
    report = Report("operate", "Operating a pool", quick=True)
    _operate_metrics.measure_scrape(report)
    found = {figure.name: figure.value for figure in report.figures}
    assert found["series of a scrape"] > 4 * 8
    assert found["scrape"] > 0
