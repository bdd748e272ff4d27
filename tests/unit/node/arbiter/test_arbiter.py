"""The arbiter's loop over real pages, with a clock that the test moves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId, ComputePolicy
from calabash.node.arbiter import device as arbiter_device
from calabash.node.arbiter.main import BEAT_NS, FULL_SCAN_NS, TICK_CONTENDED_S, TICK_IDLE_S, TICK_REST_S, Arbiter
from calabash.node.arbiter.policy import decide
from calabash.node.slots.clamped_counters import MS
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot
from calabash.node.slots.layout import Gate, PagePolicy
from calabash.node.slots.pages import LimitsPage, UsagePage

SCAN_NS = 200 * MS


def _slot(
    home: Path, name: str, percent: int, policy: ComputePolicy = ComputePolicy.FIXED
) -> tuple[LimitsPage, UsagePage]:
    path = home / "alloc" / name
    device = SlotDevice(uuid=DeviceUuid("GPU-0"), core_percent=percent, policy=policy)
    create_slot(path, SlotSpec(allocation=AllocationId(name), devices=(device,)))
    return LimitsPage.of_slot(path), UsagePage.of_slot(path)


def _wants(usage: UsagePage, now_ns: int) -> None:
    device = usage._page.device[0]
    device.demand_ns = now_ns
    device.waiting_count = 1


def test_two_active_containers_get_time_windows_and_a_single_one_its_rate(tmp_path: Path) -> None:
    (first, first_usage), (second, second_usage) = _slot(tmp_path, "a", 30), _slot(tmp_path, "b", 70)
    arbiter = Arbiter(tmp_path)
    now = 10_000 * MS
    assert arbiter.step(now) == TICK_IDLE_S
    assert {first.device(0).gate, second.device(0).gate} == {Gate.RATE}
    for usage in (first_usage, second_usage):
        _wants(usage, now + MS)
    assert arbiter.step(now + MS) == TICK_CONTENDED_S
    for limits, percent in ((first, 30), (second, 70)):
        device = limits.device(0)
        assert (device.gate, device.neighbours, device.word % 2) == (Gate.TURN, 1, 0)
        assert device.plan.from_ns > now
        assert (device.plan.end_ns - device.plan.start_ns) * 100 == pytest.approx(
            percent * device.plan.period_ns, rel=0.02
        )
    _wants(first_usage, now + 400 * MS)
    arbiter.step(now + 400 * MS)
    assert {first.device(0).gate, second.device(0).gate} == {Gate.RATE}


def test_heartbeat_is_written_and_slots_may_be_added_and_removed(tmp_path: Path) -> None:
    limits, _ = _slot(tmp_path, "a", 30)
    arbiter = Arbiter(tmp_path)
    arbiter.step(5_000 * MS)
    assert limits.heartbeat_ns == 5_000 * MS
    arbiter.step(5_000 * MS + BEAT_NS + 1)
    assert limits.heartbeat_ns > 5_000 * MS
    late, _ = _slot(tmp_path, "b", 20, ComputePolicy.BURST)
    arbiter.step(5_000 * MS + SCAN_NS)
    assert late.heartbeat_ns == 5_000 * MS + SCAN_NS
    shutil.rmtree(tmp_path / "alloc" / "a")
    arbiter.step(5_000 * MS + 2 * SCAN_NS)
    assert limits.heartbeat_ns < 5_000 * MS + 2 * SCAN_NS
    assert late.device(0).gate == Gate.OPEN  # alone on the card now: nothing to hold it to


def test_damaged_or_incomplete_slot_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits, _ = _slot(tmp_path, "good", 30)
    _slot(tmp_path, "bad", 30)
    (tmp_path / "alloc" / "bad" / "usage").write_bytes(b"short")
    (tmp_path / "alloc" / ".new-slot").mkdir()
    arbiter = Arbiter(tmp_path)
    arbiter.step(5_000 * MS)
    arbiter.step(5_000 * MS + SCAN_NS)
    assert limits.heartbeat_ns == 5_000 * MS + SCAN_NS
    assert capsys.readouterr().err.count("slot bad cannot be opened and is ignored") == 1


def _started(home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "calabash.node.arbiter.main", "--home", str(home)])


def _beats(limits: LimitsPage, since_ns: int) -> bool:
    deadline = time.monotonic() + 60
    while limits.heartbeat_ns <= since_ns and time.monotonic() < deadline:
        time.sleep(0.005)
    return limits.heartbeat_ns > since_ns


def test_second_arbiter_waits_for_the_first_and_takes_over(tmp_path: Path) -> None:
    limits, _ = _slot(tmp_path, "a", 30)
    first = _started(tmp_path)
    assert _beats(limits, 0)
    second = _started(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert _beats(limits, time.monotonic_ns())
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == 0


def test_arbiter_exits_with_its_parent(tmp_path: Path) -> None:
    limits, _ = _slot(tmp_path, "a", 30)
    program = (
        "import os, subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-m', 'calabash.node.arbiter.main', '--home', {str(tmp_path)!r}])\n"
        "print(p.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert _beats(limits, 0)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 60
    alive = True
    while alive and time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            alive = "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
        except (ProcessLookupError, FileNotFoundError):
            alive = False
        time.sleep(0.01)
    assert not alive


def test_lowered_share_leaves_time_to_others_until_it_is_raised(tmp_path: Path) -> None:
    (first, first_usage), (second, second_usage) = (
        _slot(tmp_path, "a", 50),
        _slot(tmp_path, "b", 50, ComputePolicy.BURST),
    )
    arbiter = Arbiter(tmp_path)
    now = 10_000 * MS

    def part(limits: LimitsPage) -> float:
        plan = limits.device(0).plan
        return (plan.end_ns - plan.start_ns) / plan.period_ns if plan.period_ns else 0.0

    def share() -> float:
        """Return the share of the first tenant's time, once both have used their windows for a while."""
        nonlocal now
        for _ in range(400):
            now += 5 * MS
            for limits, usage in ((first, first_usage), (second, second_usage)):
                usage._page.device[0].charged_ns += int(5 * MS * part(limits))
                _wants(usage, now)
            arbiter.step(now)
        return part(first)

    assert share() == pytest.approx(0.5, abs=0.02)
    first.set_policy(0, PagePolicy.BEST_EFFORT)
    assert share() < 0.05
    first.set_policy(0, PagePolicy.FIXED)
    assert share() == pytest.approx(0.5, abs=0.05)
    assert second.device(0).policy == PagePolicy.BURST


class Decisions:
    """Counter of decisions about devices, and of reads of demands that are more than one word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.reads = 0
        demand = arbiter_device.DeviceShare.demand

        def counted_decide(*given: Any) -> Any:
            self.count += 1
            return decide(*given)

        def counted_demand(share: arbiter_device.DeviceShare, now_ns: int) -> Any:
            self.reads += 1
            return demand(share, now_ns)

        monkeypatch.setattr(arbiter_device, "decide", counted_decide)
        monkeypatch.setattr(arbiter_device.DeviceShare, "demand", counted_demand)


def _rested(arbiter: Arbiter, now_ns: int, *, for_ns: int) -> int:
    """Let ``for_ns`` pass without demand; return the time."""
    end_ns = now_ns + for_ns
    while now_ns < end_ns:
        now_ns += int(arbiter.step(now_ns) * 1e9)
    return now_ns


def test_unused_device_costs_no_decision_and_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [_slot(tmp_path, name, 30) for name in "abc"]
    arbiter, decisions = Arbiter(tmp_path), Decisions(monkeypatch)
    now = _rested(arbiter, 10_000 * MS, for_ns=10_000 * MS)
    assert decisions.count < 10
    assert arbiter.step(now) == TICK_REST_S
    decisions.count = decisions.reads = 0
    before_ns = now
    now = _rested(arbiter, now, for_ns=10_000 * MS)
    assert (decisions.count, decisions.reads) == (0, 0)
    assert all(limits.heartbeat_ns > now - 700 * MS for limits, _ in pages), "signs of life go on"
    assert before_ns < now


def test_demand_ends_the_rest_of_a_device_at_the_next_step(tmp_path: Path) -> None:
    (first, first_usage), (second, second_usage) = _slot(tmp_path, "a", 30), _slot(tmp_path, "b", 70)
    arbiter = Arbiter(tmp_path)
    now = _rested(arbiter, 10_000 * MS, for_ns=20_000 * MS)
    for usage in (first_usage, second_usage):
        _wants(usage, now)
    assert arbiter.step(now) == TICK_CONTENDED_S
    assert {first.device(0).gate, second.device(0).gate} == {Gate.TURN}
    assert {first.heartbeat_ns, second.heartbeat_ns} == {now}, "or the order would be taken for an old one"


def test_accounts_after_a_rest_are_those_of_a_device_that_never_rested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    for rests in (True, False):
        home = tmp_path / str(rests)
        slots = [_slot(home, "a", 30), _slot(home, "b", 70)]
        arbiter = Arbiter(home)
        if not rests:
            monkeypatch.setattr(arbiter_device, "_is_steady", lambda *_: False)
        now = 10_000 * MS
        while now < 15_000 * MS:
            arbiter.step(now)
            now += 20 * MS
        for step in range(200):
            for _, usage in slots:
                usage._page.device[0].demand_ns = now
                usage._page.device[0].waiting_count = 1
                usage._page.device[0].charged_ns += 400_000 + 100_000 * (step % 3)
            arbiter.step(now)
            now += 2 * MS
        plans.append([(bytes(limits.device(0).plan), limits.device(0).gate) for limits, _ in slots])
    assert plans[0] == plans[1]


def test_use_measured_only_by_the_driver_ends_the_rest_of_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, _ = _slot(tmp_path, "a", 30)
    _slot(tmp_path, "b", 70)
    arbiter, decisions = Arbiter(tmp_path), Decisions(monkeypatch)
    now = _rested(arbiter, 10_000 * MS, for_ns=5_000 * MS)
    decisions.count = 0
    limits.add_seen(0, 50 * MS, unreported_ns=50 * MS)
    now = _rested(arbiter, now, for_ns=600 * MS)
    assert decisions.count > 1


def test_unchanged_directory_of_slots_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        _slot(tmp_path, name, 30)
    arbiter, found = Arbiter(tmp_path), list[Path]()
    now = _rested(arbiter, 10_000 * MS, for_ns=2_000 * MS)
    scan = os.scandir

    def counted(path: Path) -> Any:
        found.append(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    now = _rested(arbiter, now, for_ns=10_000 * MS)
    assert len(found) <= 10_000 * MS // FULL_SCAN_NS + 1
    late, _ = _slot(tmp_path, "d", 20)
    _rested(arbiter, now, for_ns=2 * SCAN_NS)
    assert late.heartbeat_ns >= now
