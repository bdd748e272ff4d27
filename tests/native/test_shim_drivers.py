"""Tests of the shim with a driver that differs from the simulator's where the interface permits it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.native.shim_world import GIB, MIB, OUT_OF_MEMORY, SUCCESS, Slot, World, program

NOT_SUPPORTED = 801


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return World.create(tmp_path).slot(cap=100 * MIB)


@pytest.fixture
def driver(slot: Slot, tmp_path: Path) -> dict[str, str]:
    """Return the environment in which that driver is the only one."""
    library = program("otherdriver", "-shared", "-fPIC", "-Wl,-Bsymbolic,-soname,libcuda.so.1")
    (tmp_path / "driver").mkdir()
    shutil.copy(library, tmp_path / "driver/libcuda.so.1")
    uuid = slot.world.uuids()[0].removeprefix("GPU-")
    return {"LD_LIBRARY_PATH": str(tmp_path / "driver"), "TEST_UUID": uuid}


def test_pool_that_grows_in_large_steps_fills_the_cap_to_its_last_step(slot: Slot, driver: dict[str, str]) -> None:
    taken, answer = slot.tenant("fill", "async", 1_000_000, **driver).split()
    assert int(answer) == OUT_OF_MEMORY
    assert int(taken) == 3 * (32 * MIB // 1_000_000)
    assert slot.usage.device(0).peak_bytes <= 100 * MIB
    assert slot.usage.device(0).used_bytes == 96 * MIB


def test_private_entry_of_the_driver_is_exchanged_by_its_name(slot: Slot, driver: dict[str, str]) -> None:
    assert slot.run(program("finder"), "address", str(GIB), **driver) == str(OUT_OF_MEMORY)
    assert slot.run(program("finder"), "address", str(MIB), **driver) == str(SUCCESS)


def test_function_that_the_driver_does_not_have_answers_instead_of_crashing(slot: Slot, driver: dict[str, str]) -> None:
    assert slot.tenant("fill", "pitched", 1000, **driver) == f"0 {NOT_SUPPORTED}"
    assert slot.usage.device(0).used_bytes == 0


def test_no_driver_at_all_is_no_device(slot: Slot, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    script = "import ctypes; shim = ctypes.CDLL(None); print(shim.cuInit(0), shim.nvmlInit_v2())"
    assert slot.run("python3", "-c", script, LD_LIBRARY_PATH=str(tmp_path / "empty")) == "100 12"


def test_driver_that_still_holds_the_memory_of_the_dead_is_asked_again(slot: Slot, driver: dict[str, str]) -> None:
    late = driver | {"TEST_REFUSALS": "20"}
    assert slot.tenant("alloc", 60 * MIB, **late) == str(OUT_OF_MEMORY), "nobody has died: the card is full"
    with slot.start_holder(60 * MIB, **driver):
        pass
    assert slot.tenant("alloc", 60 * MIB, **late) == str(SUCCESS)
    with slot.start_holder(60 * MIB, **driver):
        pass
    never = driver | {"TEST_REFUSALS": "1000000"}
    assert slot.tenant("alloc", 60 * MIB, **never) == str(OUT_OF_MEMORY), "and not for ever"
