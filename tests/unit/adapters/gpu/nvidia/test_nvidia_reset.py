"""Resets by the driver's own tool: its output is interpreted, and its run has a time limit."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.stand_ins import stand_in_smi

from calabash.adapters.gpu.gate import DriverGate
from calabash.adapters.gpu.nvidia import reset as nvidia_reset
from calabash.adapters.host import children
from calabash.adapters.host.children import PROGRAM_PATH
from calabash.model.errors import CalabashError, Reason

HANG_S = 60.0


def tool(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Make the first ``nvidia-smi`` of the search path run a script."""
    monkeypatch.setenv(PROGRAM_PATH, str(directory))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return stand_in_smi(directory, script)


def test_cards_that_belong_together_are_reset_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tool(tmp_path, monkeypatch, "exit 0")
    nvidia_reset.reset_real(["GPU-1", "GPU-2"])
    assert asked.read_text() == "--gpu-reset -i GPU-1,GPU-2\n"


@pytest.mark.parametrize(
    ("script", "reason", "said"),
    [
        ("echo 'GPU 00000000:01:00.0 is currently in use by another process.'; exit 4", Reason.CONFLICT, "in use"),
        ("echo 'Insufficient Permissions' >&2; exit 4", Reason.NOT_PERMITTED, "Insufficient"),
        ("echo 'Resetting GPU is not supported.'; exit 3", Reason.UNHEALTHY, "not supported"),
        ("exit 255", Reason.UNHEALTHY, "255"),
        ("yes no | head -c 100000; exit 1", Reason.UNHEALTHY, "no no"),
    ],
)
def test_a_refusal_says_what_the_tool_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: Reason, said: str
) -> None:
    tool(tmp_path, monkeypatch, script)
    with pytest.raises(CalabashError) as refused:
        nvidia_reset.reset_real(["GPU-1"])
    assert refused.value.reason is reason
    assert said in refused.value.message
    assert len(refused.value.message) <= 300
    assert refused.value.hint


def test_a_reset_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(nvidia_reset, "RESET_S", 0.2)
    with pytest.raises(CalabashError) as refused:
        nvidia_reset.reset_real(["GPU-1"])
    assert refused.value.reason is Reason.TIMEOUT


def test_without_the_tool_a_reset_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(children, "SYSTEM_DIRECTORIES", ())
    with pytest.raises(CalabashError) as refused:
        nvidia_reset.reset_real(["GPU-1"])
    assert refused.value.reason is Reason.UNSUPPORTED


def test_gate_closes_once_no_call_is_inside_and_later_calls_wait() -> None:
    gate, entered, leave = DriverGate(), threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with gate.shared():
            entered.set()
            assert leave.wait(HANG_S)
            order.append("first")

    def late() -> None:
        with gate.shared():
            order.append("late")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert entered.wait(HANG_S)
    threading.Timer(0.05, leave.set).start()
    with gate.exclusive(HANG_S):
        order.append("alone")
        threads.append(threading.Thread(target=late))
        threads[1].start()
        assert not gate.wait_open(0.05)
    for thread in threads:
        thread.join(HANG_S)
    assert order == ["first", "alone", "late"]


def test_gate_opens_again_if_a_call_does_not_leave_in_time() -> None:
    gate = DriverGate()
    with gate.shared(), pytest.raises(CalabashError) as refused, gate.exclusive(0.05):
        pass
    assert refused.value.reason is Reason.TIMEOUT
    assert gate.wait_open(0.0)
