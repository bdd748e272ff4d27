"""Tests of the compute limiter alone, with a minimal driver that runs launches one after the other in virtual time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.compiled import compiled

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def limiter() -> Path:
    """Compile the test program with sanitizers."""
    include = next((ROOT / ".venv" / "lib").glob("python3*/site-packages/nvidia/cu13/include"))
    sources = [ROOT / "tests/native/compute_bench.c", *sorted((ROOT / "native/shim").glob("compute*.c"))]
    sources += [ROOT / "native/shim/elf.c", ROOT / "native/shim/spin.c"]
    command = ["gcc", "-std=gnu11", "-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command += ["-Wl,--wrap=clock_gettime,--wrap=usleep,--wrap=syscall"]
    command += [f"-I{ROOT / 'native'}", "-isystem", str(include), *map(str, sources)]
    return compiled("compute_bench", command)


def _run(program: Path, *arguments: object) -> dict[str, float]:
    done = subprocess.run(
        [program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    return {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)}


@pytest.mark.parametrize(("percent", "kernel_us"), [(10, 100), (30, 1_000), (80, 1_000), (30, 10_000)])
def test_rate_is_kept_for_every_kernel_length_and_charge_is_exact(limiter: Path, percent: int, kernel_us: int) -> None:
    got = _run(limiter, "rate", percent, kernel_us, 1)
    assert got["share"] == pytest.approx(percent / 100, rel=0.01)
    assert got["charged"] == pytest.approx(1, abs=0.005)
    assert got["waiting"] == 0


def test_kernels_of_varying_length_are_charged_by_their_mean(limiter: Path) -> None:
    got = _run(limiter, "rate", 50, 200, 1, 400)  # 0.2 to 0.6 ms
    assert got["charged"] == pytest.approx(1, abs=0.03)


def test_short_launches_are_sampled(limiter: Path) -> None:
    got = _run(limiter, "rate", 80, 20, 0.5)
    assert got["records"] < got["launches"] / 16


def test_launches_stay_inside_their_time_windows(limiter: Path) -> None:
    got = _run(limiter, "turn", 6, 20, 200)
    assert got["share"] == pytest.approx(0.3, abs=0.015)
    assert got["outside"] < 0.05  # the last kernel may end half its length late; without time windows it were 0.7


def test_rate_replaces_time_windows_without_an_agent(limiter: Path) -> None:
    got = _run(limiter, "dead-agent")
    assert got["blocked_ms"] == pytest.approx(200, abs=2)
    assert got["share"] == pytest.approx(0.3 + 20 / 600, abs=0.01)  # with 20 ms saved up, of 600 ms


def test_capturing_stream_is_not_measured_or_charged(limiter: Path) -> None:
    got = _run(limiter, "capture")
    assert (got["during"], got["charged"]) == (0, 0)
    assert got["after"] > 0


def test_charge_of_a_failed_launch_is_refunded(limiter: Path) -> None:
    assert _run(limiter, "failure") == {"charged": 0, "inflight": 0, "launches": 0, "own": 0}


def test_synchronised_context_has_no_launch_in_flight(limiter: Path) -> None:
    got = _run(limiter, "synchronised")
    assert got["before"] > 0
    assert (got["after"], got["own"]) == (0, 0)


def test_work_of_a_killed_sibling_delays_others_only_briefly(limiter: Path) -> None:
    assert _run(limiter, "dead-sibling")["blocked_ms"] < 20


def test_forked_child_starts_with_its_own_counters_and_events(limiter: Path) -> None:
    assert _run(limiter, "forked") == {"fresh_events": 1, "own": 1}


def test_queued_launches_are_counted_and_charged_exactly(limiter: Path) -> None:
    got = _run(limiter, "advance")
    assert got["looked"] <= got["launches"] == 20_000
    assert got["charged"] == pytest.approx(1, abs=0.002)
    assert got["ended"] == 21_017, "a thread that ends books what it has launched"
    assert got["inflight"] == 1


def test_new_order_of_the_agent_applies_to_the_next_launch(limiter: Path) -> None:
    got = _run(limiter, "recalled")
    assert got["granted"] > 0, "nothing could be launched in advance, so nothing was tried"
    assert got["waited_ms"] == pytest.approx(20_100, abs=20)  # 200 ms of debt and 1 ms of credit, at one percent


def test_concurrent_launches_are_all_counted(limiter: Path) -> None:
    assert _run(limiter, "together")["launches"] == 6_000


def test_process_uses_the_measurement_of_a_sibling_for_the_same_kernel(
    limiter: Path,
) -> None:
    got = _run(limiter, "siblings")
    assert got["waited_ms"] == pytest.approx(100, abs=2)  # from 20 ms on, until both launches of the sibling have run
    assert got["cost_ms"] == pytest.approx(60, rel=0.01)


def test_concurrent_kernels_are_charged_their_union_not_their_sum(limiter: Path) -> None:
    got = _run(limiter, "side-by-side")
    assert got["work"] > 3.9
    assert got["charged"] == pytest.approx(1, abs=0.02)
