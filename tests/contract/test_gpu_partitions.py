"""MIG partitions through the driver: reported layouts are the actual ones, and every refusal has its reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.orchid import open_orchid

from calabash.adapters.gpu import sim, vendors
from calabash.adapters.gpu.partitions import Partitioning, partitioning_of
from calabash.adapters.gpu.protocol import DriverOptions, GpuDriver
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="cutting cards needs root, as on a real one")

HOLD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node(tmp_path: Path) -> sim.NodeFile:
    return sim.create_node(tmp_path, "lab", "A100-80GB,A30,T4", seed=1)


@pytest.fixture
def driver(node: sim.NodeFile) -> Iterator[GpuDriver]:
    opened = vendors.open_driver("nvidia", DriverOptions(sim_state=node.state))
    yield opened
    opened.close()


@pytest.fixture
def cards(driver: GpuDriver) -> tuple[Device, ...]:
    return driver.devices()


@pytest.fixture
def cut(driver: GpuDriver) -> Partitioning:
    found = partitioning_of(driver)
    assert found is not None
    return found


@pytest.fixture
def hold(node: sim.NodeFile) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(uuid: str) -> subprocess.Popen[str]:
        environment = os.environ | sim.environment(node) | {"CUDA_VISIBLE_DEVICES": uuid}
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def refused(call: Callable[[], object]) -> Reason:
    with pytest.raises(CalabashError) as caught:
        call()
    return caught.value.reason


def test_driver_of_a_vendor_without_partitions_has_no_partitioning() -> None:
    assert partitioning_of(vendors.open_driver("orchid", extra={"orchid": open_orchid})) is None


def test_profiles_and_placements_are_those_of_the_driver(cards: tuple[Device, ...]) -> None:
    a100, a30, t4 = (card.mig for card in cards)
    assert t4 is None
    assert a100 is not None
    assert a30 is not None
    assert (a100.slices, a100.compute, a30.slices, a30.compute) == (8, 7, 4, 4)
    assert {p.name: p.starts for p in a100.profiles} == {
        "1g.10gb": (0, 1, 2, 3, 4, 5, 6),
        "1g.10gb+me": (0, 1, 2, 3, 4, 5, 6),
        "1g.20gb": (0, 2, 4, 6),
        "2g.20gb": (0, 2, 4),
        "3g.40gb": (0, 4),
        "4g.40gb": (0,),
        "7g.80gb": (0,),
    }
    assert [p.name for p in a100.profiles if p.media] == ["1g.10gb+me"]
    largest = a100.profile("7g.80gb")
    assert largest is not None
    assert (largest.slices, largest.compute, largest.memory_mib, largest.limit) == (8, 7, 80896, 1)


def test_instance_is_listed_until_it_is_destroyed(cards: tuple[Device, ...], cut: Partitioning) -> None:
    card = cards[0].uuid
    assert not cut.layout(card).enabled
    cut.enable(card, True)
    half = cut.create(card, "3g.40gb", 4)
    small = cut.create(card, "1g.10gb", 0)
    parts = [cut.create_part(card, half.id, compute) for compute in (2, 1)]
    whole = cut.create_part(card, small.id, 1)
    layout = cut.layout(card)
    assert layout.enabled
    assert [(i.profile, i.start, len(i.parts)) for i in layout.instances] == [("1g.10gb", 0, 1), ("3g.40gb", 4, 2)]
    assert layout.at("3g.40gb", 4) is layout.instances[1]
    assert [(p.uuid, p.compute, p.start) for p in layout.instances[1].parts] == [
        (p.uuid, p.compute, p.start) for p in parts
    ]
    assert layout.instances[0].parts == (whole,)
    assert refused(lambda: cut.destroy(card, half.id)) is Reason.CONFLICT
    for part in parts:
        cut.destroy_part(card, half.id, part.id)
    cut.destroy(card, half.id)
    assert [i.id for i in cut.layout(card).instances] == [small.id]
    assert refused(lambda: cut.destroy(card, half.id)) is Reason.NOT_FOUND


def test_refusals_have_their_reasons(cards: tuple[Device, ...], cut: Partitioning) -> None:
    card = cards[0].uuid
    cut.enable(card, True)
    made = cut.create(card, "3g.40gb", 0)
    assert refused(lambda: cut.create(card, "1g.10gb", 3)) is Reason.NO_CAPACITY
    assert refused(lambda: cut.create(card, "3g.40gb", 2)) is Reason.BAD_REQUEST
    assert refused(lambda: cut.create(card, "5g.1gb", 0)) is Reason.BAD_REQUEST
    assert refused(lambda: cut.create_part(card, made.id, 4)) is Reason.BAD_REQUEST
    cut.create_part(card, made.id, 2)
    assert refused(lambda: cut.create_part(card, made.id, 2)) is Reason.NO_CAPACITY
    assert refused(lambda: cut.layout(cards[2].uuid)) is Reason.MODE_CONFLICT


def test_a_card_in_use_keeps_its_mode_and_nothing_is_pending(
    cards: tuple[Device, ...], cut: Partitioning, hold: Callable[[str], subprocess.Popen[str]], node: sim.NodeFile
) -> None:
    card = cards[0].uuid
    holder = hold(card)
    assert refused(lambda: cut.enable(card, True)) is Reason.CONFLICT
    holder.kill()
    holder.wait()
    assert sim.show_node(node).devices[0].mig_enabled is False
    cut.enable(card, True)
    cut.enable(card, True)
    cut.create(card, "1g.10gb", 0)
    assert refused(lambda: cut.enable(card, False)) is Reason.CONFLICT


def test_processes_and_memory_are_reported_by_instance(
    cards: tuple[Device, ...],
    cut: Partitioning,
    driver: GpuDriver,
    hold: Callable[[str], subprocess.Popen[str]],
) -> None:
    card = cards[0].uuid
    cut.enable(card, True)
    first, second = (cut.create_part(card, cut.create(card, "1g.10gb", start).id, 1) for start in (0, 1))
    holder = hold(second.uuid)
    assert [(p.pid, p.part) for p in driver.processes(card)] == [(holder.pid, second.uuid)]
    assert [p.pid for p in driver.processes(second.uuid)] == [holder.pid]
    assert driver.processes(first.uuid) == ()
    assert driver.read(first.uuid).memory_used_mib == 0
    assert 0 < driver.read(second.uuid).memory_used_mib <= 9728
    one, other = cut.layout(card).instances
    assert (one.in_use, other.in_use) == (False, True)
    assert refused(lambda: cut.destroy_part(card, other.id, second.id)) is Reason.CONFLICT
