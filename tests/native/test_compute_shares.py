"""End-to-end tests of compute shares: shim and arbiter process on the simulated driver, in virtual time.

The shares are checked against the simulated card's own accounting. One test is in real time, for the parts that virtual
time replaces: the kernel's clock and its futexes.

``test_compute_virtual.py`` has the shares of many processes and the return of lent time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench._lab import Lab
from bench._virtual import VirtualLab

from calabash.model.request import ComputePolicy

HEARTBEAT_NS = 200_000_000  # as in native/shim/compute_gate.c: older than this, time windows are ignored
PATIENCE_S = 120.0
MS = 1_000_000


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLab]:
    monkeypatch.setenv("BENCH_CARD", "sim")
    with VirtualLab() as made:
        yield made


def test_tenant_of_30_percent_gets_30_percent(lab: VirtualLab) -> None:
    lab.slot("a", core_percent=30)
    tenant = lab.load("a", "--kernel-us", 1000, "--seconds", 60)
    (got,) = lab.percent([tenant], 1, settle=0.5)
    assert got == pytest.approx(30, abs=0.5)


def test_eight_processes_share_one_bucket(lab: VirtualLab) -> None:
    lab.slot("a", core_percent=40)
    tenants = [lab.load("a", "--kernel-us", 2000, "--seconds", 60) for _ in range(8)]
    assert sum(lab.percent(tenants, 1, settle=0.5)) == pytest.approx(40, abs=0.5)


def test_graphs_are_charged_like_kernels(lab: VirtualLab) -> None:
    lab.slot("a", core_percent=30)
    tenant = lab.load("a", "--kernel-us", 100, "--graph", 20, "--seconds", 60)
    (got,) = lab.percent([tenant], 1, settle=0.5)
    assert got == pytest.approx(30, abs=0.5)


def test_two_tenants_divide_the_device_as_requested(lab: VirtualLab) -> None:
    lab.slot("a", core_percent=30)
    lab.slot("b", core_percent=70)
    tenants = [lab.load(name, "--kernel-us", 1000, "--seconds", 60) for name in "ab"]
    assert lab.percent(tenants, 1, settle=0.5) == pytest.approx([30, 70], abs=1)


def test_burst_tenant_uses_idle_time_and_fixed_tenant_keeps_to_its_share(lab: VirtualLab) -> None:
    lab.slot("fixed", core_percent=30)
    lab.slot("burst", core_percent=30, policy=ComputePolicy.BURST)
    tenant = lab.load("burst", "--kernel-us", 1000, "--seconds", 60)
    (alone,) = lab.percent([tenant], 0.5, settle=0.5)
    assert alone > 98
    other = lab.load("fixed", "--kernel-us", 1000, "--seconds", 60)
    assert lab.percent([tenant, other], 1, settle=0.5) == pytest.approx([70, 30], abs=1)


def test_killed_process_leaves_the_whole_share_to_its_siblings(lab: VirtualLab) -> None:
    lab.slot("a", core_percent=50)
    victim = lab.load("a", "--kernel-us", 20_000, "--seconds", 60)
    tenant = lab.load("a", "--kernel-us", 20_000, "--seconds", 60)
    lab.sleep(0.4)
    victim.kill()
    (got,) = lab.percent([tenant], 1.5, settle=0.3)
    assert got == pytest.approx(50, abs=2)  # a kernel is 1.3 percent of the measurement


def test_shares_hold_without_the_arbiter_and_after_its_restart(lab: VirtualLab) -> None:
    lab.slot("a", core_percent=30)
    lab.slot("b", core_percent=40)
    tenants = [lab.load(name, "--kernel-us", 1000, "--seconds", 60) for name in "ab"]
    lab.sleep(0.5)
    lab.stop_arbiter()
    assert lab.percent(tenants, 1, settle=0.5) == pytest.approx([30, 40], abs=1)
    assert lab.now_ns() - lab.limits("a").heartbeat_ns > HEARTBEAT_NS
    lab.start_arbiter()
    assert lab.percent(tenants, 1, settle=0.3) == pytest.approx([30, 40], abs=1)
    assert lab.now_ns() - lab.limits("a").heartbeat_ns < HEARTBEAT_NS


def test_shares_hold_in_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CARD", "sim")
    shares = {"a": 20, "b": 50}  # without limits they would divide the device evenly
    with Lab() as lab:
        for name, share in shares.items():
            lab.slot(name, core_percent=share)
        tenants = [lab.load(name, "--kernel-us", 1000, "--seconds", 2 * PATIENCE_S) for name in shares]
        begin_ns, begin = lab.busy_ns()
        now_ns, had_ns = begin_ns, [0]
        while min(had_ns) < 250 * MS:
            assert now_ns - begin_ns < PATIENCE_S * 1e9, had_ns
            time.sleep(0.05)
            now_ns, now = lab.busy_ns()
            had_ns = [now[t.pid] - begin[t.pid] for t in tenants]
        for had, share in zip(had_ns, shares.values(), strict=True):
            assert had < (now_ns - begin_ns) * share / 100 + 100 * MS


def test_shim_refuses_to_run_without_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CARD", "sim")
    with Lab(arbiter=False) as lab:
        lab.slot("a")
        environment = lab.environment("a")
        assert Path(environment["LD_PRELOAD"]).name == "libcalabash.so"
        lab.drop_slot("a")
        tenant = lab.start("a", "gpuload", "--kernels", os.devnull)
        assert "calabash:" in tenant.finish_text()
        assert tenant.process.returncode != 0
