"""Tests of several processes on one simulated card: shared time, shared memory, death, faults."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.sim_cuda_programs import CudaNode, ask, program
from tests.native.simnode import simctl, until

MIB = 1 << 20
REPEATS = 5


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CudaNode]:
    made = CudaNode(tmp_path / "node.state", "T4,A100-40GB")
    yield made
    made.close()


def finish(process: subprocess.Popen[str]) -> float:
    assert process.stdout is not None
    return float(process.stdout.readline())


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def spin(node: CudaNode, count: int, each_ns: int, processes: int) -> list[float]:
    """Return the milliseconds between the first and the last event of each of several processes that start together."""
    running = [node.start("sim_cuda_load", "spin", count, each_ns, CUDA_VISIBLE_DEVICES="0") for _ in range(processes)]
    for process in running:
        go(process)
    return [finish(p) for p in running]


def alone_ms(node: CudaNode, count: int, each_ns: int) -> float:
    """Return the median of the same for a single process, as other work of the machine may come between two launches."""
    return statistics.median(spin(node, count, each_ns, 1)[0] for _ in range(REPEATS))


def test_process_alone_has_the_whole_card(node: CudaNode) -> None:
    assert alone_ms(node, 100, 3_000_000) == pytest.approx(300, abs=2)


def test_two_processes_slow_each_other_and_the_card_is_busy_for_the_sum(node: CudaNode) -> None:
    # The first event is recorded at the start of each, so the later one also counts what it waits for its first turn.
    pairs = [sorted(spin(node, 100, 3_000_000, 2)) for _ in range(REPEATS)]
    earlier, later = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert 550 < later < 700
    assert earlier > 450
    assert node.device(1)["busy_ns"] == REPEATS * 600_000_000  # index 1 is the faster card, CUDA's device 0


def test_slow_card_takes_longer_by_its_factor(node: CudaNode) -> None:
    assert simctl("inject", node.state, "--gpu", 1, "slow", "250%").returncode == 0
    assert node.device(1)["slow_permille"] == 2500
    assert alone_ms(node, 20, 1_000_000) == pytest.approx(50, abs=2)


def test_memory_is_never_sold_twice_and_can_be_filled_to_the_last_block(node: CudaNode) -> None:
    hammers = [node.start("sim_cuda_load", "hammer", seed, 600, CUDA_VISIBLE_DEVICES="1") for seed in range(12)]
    for process in hammers:
        go(process)
    until(lambda: node.device(0)["denied_count"] > 0, "the card to be fought for")
    during = node.device(0)
    total = during["memory_total_bytes"] - during["memory_reserved_bytes"]
    assert during["used_peak_bytes"] <= total
    for process in hammers:
        process.kill()
        process.wait()
    after = node.device(0)
    assert (after["used_bytes"], after["alloc_bytes"]) == (0, 0)
    taken = int(node.run("sim_cuda_load", "fill", 2, CUDA_VISIBLE_DEVICES="1"))
    context = node.device(0)["used_peak_bytes"]
    assert context <= total
    assert taken > 0.96 * total


def test_processes_killed_at_random_points_leave_nothing(node: CudaNode) -> None:
    pick = random.Random(7)
    alive = [node.start("sim_cuda_load", "hammer", seed, 20, CUDA_VISIBLE_DEVICES="1") for seed in range(6)]
    for process in alive:
        go(process)
    for round_number in range(40):
        time.sleep(pick.random() * 0.01)
        victim = pick.randrange(len(alive))
        alive[victim].kill()
        alive[victim].wait()
        alive[victim] = node.start("sim_cuda_load", "hammer", 100 + round_number, 20, CUDA_VISIBLE_DEVICES="1")
        go(alive[victim])
    for process in alive:
        process.kill()
        process.wait()
    assert node.device(0)["used_bytes"] == 0
    node.run("sim_cuda_load", "fill", 64, CUDA_VISIBLE_DEVICES="1")


def test_forked_child_does_not_keep_the_memory_of_its_killed_parent(node: CudaNode) -> None:
    parent = node.start("sim_cuda_load", "orphan", CUDA_VISIBLE_DEVICES="1")
    assert node.device(0)["alloc_bytes"] == 64 * MIB
    parent.kill()
    parent.wait()
    assert node.device(0)["used_bytes"] == 0


def test_peak_is_of_what_the_living_hold(node: CudaNode) -> None:
    """A process that has ended holds nothing, also before it was swept."""
    alive = node.start("sim_cuda_load", "wait", CUDA_VISIBLE_DEVICES="1")
    dead = node.start("sim_cuda_load", "orphan", CUDA_VISIBLE_DEVICES="1")
    both = node.device(0)["used_peak_bytes"]
    dead.kill()
    dead.wait()
    assert ask(alive) == "0 0 0"
    after = node.device(0)
    assert after["used_peak_bytes"] == both
    assert after["alloc_peak_bytes"] == 64 * MIB


def test_killed_neighbour_does_not_keep_the_card(node: CudaNode) -> None:
    greedy = node.start("sim_cuda_load", "spin", 100, 60_000_000_000, CUDA_VISIBLE_DEVICES="0")
    go(greedy)
    until(lambda: node.device(1)["busy_ns"] > 0, "its kernel to run")
    greedy.kill()
    greedy.wait()
    [alone] = spin(node, 50, 2_000_000, 1)
    assert alone < 190  # beside a neighbour it would be 200


def test_uncorrectable_error_ends_the_contexts_that_were_there_and_no_later_one(node: CudaNode) -> None:
    before = node.start("sim_cuda_load", "wait", CUDA_VISIBLE_DEVICES="1")
    assert ask(before) == "0 0 0"
    node.inject("ecc-double")
    assert ask(before) == "214 214 214"
    after = node.start("sim_cuda_load", "wait", CUDA_VISIBLE_DEVICES="1")
    assert ask(after) == "0 0 0"


def test_lost_card_fails_every_call_and_is_not_seen_by_new_processes(node: CudaNode) -> None:
    holder = node.start("sim_cuda_load", "wait", CUDA_VISIBLE_DEVICES="1")
    node.inject("lost")
    assert ask(holder) == "999 999 999"
    assert len(node.run("sim_cuda_load", "devices").split()) == 1


def test_injected_failure_denies_one_allocation(node: CudaNode) -> None:
    holder = node.start("sim_cuda_load", "wait", CUDA_VISIBLE_DEVICES="1")
    node.inject("alloc-fail", 2)
    assert [ask(holder) for _ in range(3)] == ["0 0 0", "0 0 2", "0 0 0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets the compute mode, as on a real card")
def test_card_in_exclusive_mode_takes_one_process(node: CudaNode) -> None:
    set_mode = f"""
from pynvml import *
nvmlInit()
nvmlDeviceSetComputeMode(nvmlDeviceGetHandleByIndex(0), {3})
"""
    done = subprocess.run(
        [sys.executable, "-c", set_mode], env=node.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    holder = node.start("sim_cuda_load", "wait", CUDA_VISIBLE_DEVICES="1")
    second = subprocess.run(
        [program("sim_cuda_load"), "fill", "64"],
        env=node.environment(CUDA_VISIBLE_DEVICES="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert "gave 46" in second.stderr  # CUDA_ERROR_DEVICE_UNAVAILABLE
    holder.kill()
    holder.wait()
    assert int(node.run("sim_cuda_load", "fill", 64, CUDA_VISIBLE_DEVICES="1")) > 0
