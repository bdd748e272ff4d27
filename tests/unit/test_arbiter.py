"""The arbiter's loop over real pages, with a clock that the test moves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calabash.agent.arbiter import BEAT_NS, TICK_CONTENDED_S, TICK_IDLE_S, Arbiter
from calabash.agent.believed import MS
from calabash.agent.pages import LimitsPage, UsagePage
from calabash.agent.pages_layout import Gate, PagePolicy
from calabash.agent.slot_content import SlotDevice, SlotSpec
from calabash.agent.slot_files import create_slot
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId, ComputePolicy

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


def test_two_that_want_the_card_get_turns_and_one_alone_gets_its_rate(tmp_path: Path) -> None:
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


def test_tenants_see_a_heartbeat_and_slots_may_come_and_go(tmp_path: Path) -> None:
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


def test_a_damaged_or_half_made_slot_stops_nobody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits, _ = _slot(tmp_path, "good", 30)
    _slot(tmp_path, "bad", 30)
    (tmp_path / "alloc" / "bad" / "usage").write_bytes(b"short")
    (tmp_path / "alloc" / ".new-slot").mkdir()
    arbiter = Arbiter(tmp_path)
    arbiter.step(5_000 * MS)
    arbiter.step(5_000 * MS + SCAN_NS)
    assert limits.heartbeat_ns == 5_000 * MS + SCAN_NS
    assert capsys.readouterr().err.count("slot bad is left alone") == 1


def _started(home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "calabash.agent.arbiter", "--home", str(home)])


def _beats(limits: LimitsPage, since_ns: int) -> bool:
    deadline = time.monotonic() + 60
    while limits.heartbeat_ns <= since_ns and time.monotonic() < deadline:
        time.sleep(0.005)
    return limits.heartbeat_ns > since_ns


def test_a_successor_waits_for_its_predecessor_and_takes_over(tmp_path: Path) -> None:
    limits, _ = _slot(tmp_path, "a", 30)
    first = _started(tmp_path)
    assert _beats(limits, 0)
    second = _started(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert _beats(limits, time.monotonic_ns())
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == 0


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    limits, _ = _slot(tmp_path, "a", 30)
    program = (
        "import os, subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-m', 'calabash.agent.arbiter', '--home', {str(tmp_path)!r}])\n"
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


def test_a_share_that_is_lowered_gives_way_to_others_and_comes_back(tmp_path: Path) -> None:
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
        """What the first has of the time, once both have used their turns for a while."""
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
