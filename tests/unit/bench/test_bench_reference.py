"""Reference measurements of the benchmarks."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest
from bench import _reference as reference
from bench._report import Report


def test_cpu_unit_is_processor_time_and_does_not_count_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    usual_s = reference.cpu_unit_s(repeats=3)
    monkeypatch.setattr(reference, "_dictionary_loop", lambda: time.sleep(0.2))
    assert usual_s > 0
    assert reference.cpu_unit_s(repeats=1) < 0.1  # of 0.2 s by the clock


def test_cpu_unit_is_the_median_of_its_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 1.0, 8.0, 8.0, 10.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    assert reference.cpu_unit_s(repeats=3) == 2.0


def test_short_loop_is_processor_time_of_one_pass_without_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    clock = iter([3.0, 3.25])
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    monkeypatch.setattr(reference, "_dictionary_loop", passes.append)
    assert reference.short_loop_s() == 0.25
    assert len(passes) == 1


def test_work_of_ten_loops_is_about_ten_cpu_units() -> None:
    with reference.cpu_time() as took:
        for _ in range(10):
            reference._dictionary_loop()
    assert 2 < took.units < 50


def test_cpu_time_takes_the_unit_before_and_after_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    units, clock = iter([0.001, 0.003]), iter([5.0, 5.5])
    monkeypatch.setattr(reference, "cpu_unit_s", lambda: next(units))
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    with reference.cpu_time() as took:
        pass
    assert (took.work_s, took.unit_s, took.units) == (0.5, 0.002, 250.0)


def test_repeated_work_is_recorded_as_units_of_one_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(name="x", title="X")
    found = reference.CpuTime(work_s=1.0, unit_s=0.002)
    figure = reference.add_cpu_time(report, "work", found, at_most=4, times=100, detail="of 100")
    assert (figure.value, figure.unit, figure.goal, figure.ok) == (5.0, "ratio", "<= 4", False)
    assert figure.detail == "10 ms, CPU unit 2 ms; of 100"
    assert "short" in capsys.readouterr().out


def test_measurements_alternate_with_their_reference() -> None:
    order: list[str] = []

    def note(name: str, value: float) -> float:
        order.append(name)
        return value

    found = reference.alternate(lambda: note("measured", 2.0), lambda: note("reference", 1.0), 3)
    assert found == ([2.0] * 3, [1.0] * 3)
    assert order == ["reference", "measured"] * 3


def test_process_start_lasts_until_the_process_has_ended() -> None:
    assert reference.process_start_s((sys.executable, "-c", "import time; time.sleep(0.2)")) > 0.2


def test_process_start_of_a_failing_command_raises() -> None:
    with pytest.raises(Exception, match="non-zero exit status 3"):
        reference.process_start_s((sys.executable, "-c", "raise SystemExit(3)"))


def test_commits_leave_nothing_in_the_directory(tmp_path: Path) -> None:
    assert reference.commit_s(tmp_path, commits=3) > 0
    assert list(tmp_path.iterdir()) == []


def test_echo_process_sends_every_message_back_and_ends() -> None:
    with reference.echo_process() as address, socket.create_connection(address, timeout=60) as connection:
        for byte in (b"a", b"b"):
            message = byte * reference.MESSAGE_BYTES
            connection.sendall(message)
            assert connection.recv(len(message), socket.MSG_WAITALL) == message
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=60)
