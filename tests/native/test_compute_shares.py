"""Compute shares end to end on the simulated driver: shim, arbiter process, and the card's own books as the truth.

Short runs with wide tolerances: a loaded machine passes, a broken limiter does not. ``bench.shares`` is precise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench._lab import Lab, Tenant

from calabash.model.request import ComputePolicy


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("BENCH_CARD", "sim")
    with Lab() as made:
        yield made


def _percent(lab: Lab, tenants: list[Tenant], seconds: float, settle: float = 0.5) -> list[float]:
    time.sleep(settle)
    before_ns, before = lab.busy_ns()
    time.sleep(seconds)
    after_ns, after = lab.busy_ns()
    return [(after[t.pid] - before[t.pid]) / (after_ns - before_ns) * 100 for t in tenants]


def test_a_tenant_of_30_percent_gets_30_percent(lab: Lab) -> None:
    lab.slot("a", core_percent=30)
    tenant = lab.load("a", "--kernel-us", 1000, "--seconds", 6)
    (got,) = _percent(lab, [tenant], 2)
    assert 24 < got < 36


def test_eight_processes_share_one_bucket(lab: Lab) -> None:
    lab.slot("a", core_percent=40)
    tenants = [lab.load("a", "--kernel-us", 2000, "--seconds", 9) for _ in range(8)]
    assert 32 < sum(_percent(lab, tenants, 1.5)) < 48


def test_graphs_are_charged_too(lab: Lab) -> None:
    lab.slot("a", core_percent=30)
    tenant = lab.load("a", "--kernel-us", 100, "--graph", 20, "--seconds", 6)
    (got,) = _percent(lab, [tenant], 1.5)
    assert 24 < got < 36


def test_two_tenants_divide_the_card_as_asked(lab: Lab) -> None:
    lab.slot("a", core_percent=30)
    lab.slot("b", core_percent=70)
    tenants = [lab.load(name, "--kernel-us", 1000, "--seconds", 8) for name in "ab"]
    first, second = _percent(lab, tenants, 2)
    assert 22 < first < 38
    assert first * 1.6 < second < first * 3.2


def test_a_fixed_tenant_stays_below_its_share_and_a_burst_tenant_uses_what_is_idle(lab: Lab) -> None:
    lab.slot("fixed", core_percent=30)
    lab.slot("burst", core_percent=30, policy=ComputePolicy.BURST)
    tenant = lab.load("burst", "--kernel-us", 1000, "--seconds", 10)
    (alone,) = _percent(lab, [tenant], 1)
    other = lab.load("fixed", "--kernel-us", 1000, "--seconds", 8)
    burst, fixed = _percent(lab, [tenant, other], 1.5)
    assert alone > 80
    assert 22 < fixed < 36
    assert burst > 45


def test_a_killed_tenant_leaves_its_siblings_running_at_full_share(lab: Lab) -> None:
    lab.slot("a", core_percent=50)
    victim = lab.load("a", "--kernel-us", 20_000, "--seconds", 9)
    tenant = lab.load("a", "--kernel-us", 20_000, "--seconds", 9)
    time.sleep(0.4)
    victim.kill()
    (got,) = _percent(lab, [tenant], 1.5, settle=0.3)
    assert 38 < got < 60


def test_shares_hold_while_the_arbiter_is_gone_and_after_it_is_back(lab: Lab) -> None:
    lab.slot("a", core_percent=30)
    lab.slot("b", core_percent=40)
    tenants = [lab.load(name, "--kernel-us", 1000, "--seconds", 9) for name in "ab"]
    time.sleep(0.5)
    lab.stop_arbiter()
    first, second = _percent(lab, tenants, 1.5)
    assert 20 < first < 40
    assert 28 < second < 50


def test_the_shim_refuses_to_run_without_a_slot(lab: Lab) -> None:
    lab.slot("a")
    environment = lab.environment("a")
    assert Path(environment["LD_PRELOAD"]).name == "libcalabash.so"
    lab.drop_slot("a")
    tenant = lab.start("a", "gpuload", "--kernels", os.devnull)
    assert "calabash:" in tenant.finish_text()
    assert tenant.process.returncode != 0
