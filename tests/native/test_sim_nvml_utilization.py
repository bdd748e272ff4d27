"""Tests of per-process utilization of the simulated card, whose samples the audit of compute adds up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.native.simnode import Holder, Node, compile_holder, until

NOT_FOUND, NOT_SUPPORTED = 6, 3
POINTS = 0.02  # of a second
READER = """
    h, got, last = handles()[0], {}, int(time.time() * 1e6)
    open("READY", "w").close()
    while True:
        over = os.path.exists("OVER")
        time.sleep(0.2)
        try: samples = nvmlDeviceGetProcessUtilization(h, last)
        except NVMLError_InsufficientSize: continue  # a process came between pynvml's question for the size and this one
        except NVMLError_NotFound:
            if over: break
            continue
        assert len({s.timeStamp for s in samples}) == 1 and samples[0].timeStamp > last
        for s in samples: got[s.pid] = got.get(s.pid, 0) + s.smUtil * (s.timeStamp - last) / 1e8
        last = samples[0].timeStamp
    answer = got
"""
ERROR = """
    def error(call, *args):
        try: call(*args)
        except NVMLError as e: return e.value
        return 0
"""


@pytest.fixture(scope="module")
def holder() -> Path:
    return compile_holder()


@pytest.fixture
def node(tmp_path: Path, holder: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node.state", "2xA100-40GB", holder)
    yield made
    made.close()


def busy_s(node: Node, holder: Holder) -> float:
    """Return the card time that the node accounts to a process, in seconds."""
    processes = {p["owner_pid"]: p["devices"] for p in node.show()["processes"]}
    return float(sum(device["busy_ns"] for device in processes.get(holder.pid, []))) / 1e9


def test_reader_of_samples_gets_the_time_of_every_process_of_those_that_come_and_go_too(
    node: Node, tmp_path: Path
) -> None:
    used: dict[int, float] = {}
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(
            node.nvml, READER.replace("OVER", str(tmp_path / "over")).replace("READY", str(tmp_path / "reads"))
        )
        until((tmp_path / "reads").exists, "the reader is up")
        long = node.hold(0, busy_ms=1_200)
        for _ in range(4):
            short = node.hold(0, busy_ms=150)
            until(lambda short=short: busy_s(node, short) >= 0.15, "its kernel has run")  # type: ignore[misc]
            used[short.pid] = busy_s(node, short)
            assert short.end() == 0
        until(lambda: busy_s(node, long) >= 1.2, "the long kernel has run")
        used[long.pid] = busy_s(node, long)
        (tmp_path / "over").touch()
        told = reading.result()
    assert set(told) == {str(pid) for pid in used}
    for pid, seconds in used.items():
        assert told[str(pid)] == pytest.approx(seconds, abs=POINTS), f"process {pid}"


def test_time_of_a_killed_process_is_told_once_and_then_no_more(node: Node) -> None:
    killed = node.hold(0, busy_ms=300)
    until(lambda: busy_s(node, killed) >= 0.3, "its kernel has run")
    killed.kill()
    answer = node.nvml(
        """
        h = handles()[0]
        samples = nvmlDeviceGetProcessUtilization(h, int(time.time() * 1e6) - 6_000_000)
        first = [[s.pid, s.smUtil * 60] for s in samples]
        try: again = nvmlDeviceGetProcessUtilization(h, samples[0].timeStamp)
        except NVMLError_NotFound: again = []
        answer = [first, len(again)]
        """
    )
    (first,), again = answer
    assert first[0] == killed.pid
    assert first[1] == pytest.approx(300, abs=60)  # a percent of six seconds
    assert again == 0


def test_who_did_nothing_has_no_sample_and_nobody_at_all_is_not_found(node: Node) -> None:
    idle = node.hold(0)
    ask = f"""{ERROR}
    h = handles()[0]
    answer = [error(nvmlDeviceGetProcessUtilization, h, 0), len(nvmlDeviceGetComputeRunningProcesses(h))]
    """
    assert node.nvml(ask) == [NOT_FOUND, 1]
    busy = node.hold(0, busy_ms=60_000)
    until(lambda: busy_s(node, busy) >= 0.4, "its kernel runs")
    pids = node.nvml("answer = [s.pid for s in nvmlDeviceGetProcessUtilization(handles()[0], 0)]")
    assert pids == [busy.pid]
    assert idle.end() == 0


def test_after_the_latest_time_stamp_there_is_nothing_new(node: Node) -> None:
    node.hold(0, busy_ms=60_000)
    answer = node.nvml(
        f"""{ERROR}
    h, deadline = handles()[0], time.time() + 60
    while error(nvmlDeviceGetProcessUtilization, h, 0) and time.time() < deadline: pass
    answer = error(nvmlDeviceGetProcessUtilization, h, int(time.time() * 1e6) + 1_000_000)
    """
    )
    assert answer == NOT_FOUND


def test_another_card_of_the_node_tells_nothing(node: Node) -> None:
    busy = node.hold(0, busy_ms=400)
    until(lambda: busy_s(node, busy) >= 0.4, "its kernel has run")
    answer = node.nvml(f"{ERROR}\n    answer = error(nvmlDeviceGetProcessUtilization, handles()[1], 0)")
    assert answer == NOT_FOUND


@pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG needs root, as on a real card")
def test_with_mig_the_driver_tells_no_utilisation_of_processes(node: Node) -> None:
    answer = node.nvml(
        f"""{ERROR}
    h = handles()[0]
    nvmlDeviceSetMigMode(h, 1)
    answer = error(nvmlDeviceGetProcessUtilization, h, 0)
    """
    )
    assert answer == NOT_SUPPORTED
