"""Tests of the simulated CUDA driver in one process: memory, order, time, images, graphs, look-up of functions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.machine import marked
from tests.native.sim_cuda_programs import CudaNode, program
from tests.native.simnode import simctl

MEMORY = {
    "linear, pitched and managed memory cost their rounded size and give it back": "linear",
    "pinned and registered host memory costs the card nothing and kernels reach it": "host",
    "a pool keeps, hands out again, trims and never exceeds its maximum": "pool",
    "mappings hold physical memory after its handle is released": "mapped",
    "a mapping without access is an illegal address": "no_access",
    "arrays keep what was copied to them in three dimensions": "array",
    "the end of a context frees all that was made in it": "context_end",
    "copies of boxes touch the box and nothing else": "box",
    "a pointer knows its kind, context, device and range": "pointers",
    "an illegal address is sticky and a reset heals it": "illegal",
    "a misaligned address is an error of its own": "misaligned",
    "without coherence memory of the host is an illegal address": "not_coherent",
    "physical memory is shared with a process that gets its descriptor": "descriptor",
    "an IPC handle shows the memory of its owner, who pays": "ipc",
}
MANAGED = {
    "what does not fit is evicted, least recently used first, and comes back at the speed of the link": "evicted",
    "memory larger than the card passes through it each time": "more_than_the_card",
    "plain memory takes the place of managed memory and never the reverse": "plain_memory_has_precedence",
    "a prefetch moves memory before it is touched": "prefetched",
    "what the host has written is moved, what nobody has written is not": "written_by_the_host",
    "two processes evict each other's memory, and the dead one's is room": "two_processes",
}
ORDER = {
    "the time between events is the modelled time": "exact_time",
    "times stay exact when the queue has long been overwritten": "exact_time_of_long_ago",
    "a host function holds back its stream and who waits for it, nobody else": "host_function_holds_back",
    "the legacy stream waits for blocking streams and non-blocking streams do not": "default_streams",
    "a stream waits for a value that another stream writes": "values",
    "an event may be destroyed while a wait for it stands": "destroyed_early",
    "a graph keeps a user object": "kept",
    "a program that closed the driver's descriptors is not taken for dead": "descriptors_closed",
    "two cards copy, reach into each other and wait for each other": "two_cards",
    "large work runs beside its issuer and in order": "heavy_work",
    "64 threads leave nothing behind": "threads",
    "a forked child has no driver, its next program has": "forked",
    "nonsense is answered with an error": "nonsense",
    "an image tells its kernels, parameters, variables and limits": "images",
    "a captured graph does what the streams did": "captured",
    "a graph built by hand follows its dependencies": "built",
    "addresses are resolved by version and flavour": "addresses",
}

GREEN = {
    "multiprocessors are split by the grain of the card and described once": "split",
    "a resource that a program has changed, or of two splits, is no resource": "forged",
    "a green context has its own handle, id, streams and resources, and retains the primary one": "made",
    "memory and modules of a green context are the primary one's and outlive it": "memory_stays",
    "two green contexts run at once, each as fast as its part of the card": "side_by_side",
    "an event of a green context waits for all its work, and the primary one for all green ones": "events",
    "what is left of a destroyed green context says so": "destroyed",
    "an illegal address in one is the end of all that share the address space": "sticky_green",
}

OVERLAP = {
    "four kernels of a quarter of the card run at once, a fifth when there is room": "quarters",
    "kernels that need the whole card run one after the other": "whole_cards",
    "a kernel that finds only a part of what it needs runs slower meanwhile": "rest_of_the_card",
    "streams keep their order and wait for each other's events": "orders",
    "the legacy stream stands between what blocking streams do before and after it": "legacy",
    "more work in many streams than the queue holds is all done": "many",
}

WAITS = {
    "a thread that waits does not hold back the one that it waits for": "threads_wait",
    "a function runs while its program makes no call, and sees what was copied before it": "function_without_a_call",
    "a copy is there when any later work of its stream is told to be done": "copies_before_the_answer",
    "a capture binds the thread that began it, and others only when it is for all": "captures_by_thread",
    "a wait is for the record that was there when it was called": "waits_take_the_record_of_their_call",
}

ON_AARCH64 = {*MEMORY.values(), "made", "threads", "captured", "built"} - {"mapped", "descriptor", "ipc"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CudaNode]:
    made = CudaNode(tmp_path / "node.state", "A100-40GB,T4")
    yield made
    made.close()


@pytest.mark.parametrize("check", marked(MEMORY.values(), ON_AARCH64), ids=list(MEMORY))
def test_memory(node: CudaNode, check: str) -> None:
    node.run("sim_cuda_memory", check)
    assert node.device()["used_bytes"] == 0


@pytest.mark.aarch64
def test_card_beside_a_grace_cpu_reaches_all_memory_of_the_program(tmp_path: Path) -> None:
    node = CudaNode(tmp_path / "node.state", "GH200")
    node.run("sim_cuda_memory", "coherent")
    assert node.device()["used_bytes"] == 0
    node.close()


@pytest.mark.parametrize("check", marked(GREEN.values(), ON_AARCH64), ids=list(GREEN))
def test_green_contexts(node: CudaNode, check: str) -> None:
    node.run("sim_cuda_green", check)
    assert node.device()["used_bytes"] == 0


@pytest.mark.parametrize("check", MANAGED.values(), ids=list(MANAGED))
def test_managed_memory_beyond_the_card(tmp_path: Path, check: str) -> None:
    node = CudaNode(tmp_path / "node.state", "T4")
    node.run("sim_cuda_managed", check)
    assert node.device()["used_bytes"] == 0
    node.close()


@pytest.mark.parametrize("check", marked(ORDER.values(), ON_AARCH64), ids=list(ORDER))
def test_order(node: CudaNode, check: str) -> None:
    node.run("sim_cuda_order", check)
    assert node.device()["used_bytes"] == 0


@pytest.mark.parametrize("check", WAITS.values(), ids=list(WAITS))
def test_waits(node: CudaNode, check: str) -> None:
    node.run("sim_cuda_waits", check)
    assert node.device()["used_bytes"] == 0


@pytest.mark.parametrize("check", OVERLAP.values(), ids=list(OVERLAP))
def test_kernels_of_one_context_side_by_side(node: CudaNode, check: str) -> None:
    node.run("sim_cuda_overlap", check)
    assert node.device()["used_bytes"] == 0


def test_kernels_side_by_side_take_the_time_of_one_from_the_card(node: CudaNode) -> None:
    node.run("sim_cuda_overlap", "load")
    assert node.device()["busy_ns"] == pytest.approx(1.3e9, rel=0.001)  # four quarters for a second, and what held them


def test_what_is_not_served_is_listed_functions_apart_from_kernels(node: CudaNode) -> None:
    node.run("sim_cuda_order", "nonsense")
    functions, kernels = simctl("unserved", node.state).stdout.split("kernels that the simulation does not know")
    assert "1  cuMulticastBindAddr\n" in functions
    assert "3  stranger\n" in kernels
    assert "stranger" not in functions
    shown = json.loads(simctl("show", node.state, "--json").stdout)["unserved"]
    assert {"name": "stranger", "kind": "kernel", "count": 3} in shown


def test_kernel_that_is_not_known_is_named_once_on_stderr(node: CudaNode) -> None:
    done = subprocess.run(
        [program("sim_cuda_order"), "nonsense"], env=node.environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr == (
        "simulated CUDA: kernel stranger is not known to the simulation, its launches answer CUDA_ERROR_NOT_SUPPORTED\n"
    )


def test_visible_devices_are_chosen_by_index_uuid_and_prefix_up_to_the_first_bad_name(node: CudaNode) -> None:
    first, second = (node.device(i)["uuid"].removeprefix("GPU-") for i in (0, 1))

    def seen(text: str) -> list[str]:
        return node.run("sim_cuda_load", "devices", CUDA_VISIBLE_DEVICES=text).split()

    assert node.run("sim_cuda_load", "devices").split() == [first, second]
    assert seen("1,0") == [second, first]
    assert seen(f"GPU-{second[:8]}") == [second]
    assert seen("1,7,0") == [second]


def test_without_a_visible_device_there_is_no_device(node: CudaNode) -> None:
    for text in ("", "-1", "0,0"):
        done = subprocess.run(
            [program("sim_cuda_load"), "init"], env=node.environment(CUDA_VISIBLE_DEVICES=text), check=False
        )
        assert done.returncode == 100, f"CUDA_VISIBLE_DEVICES={text!r}"
