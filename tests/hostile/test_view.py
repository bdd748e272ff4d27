"""Attacks by a tenant on the limits and the device list of its programs: forged slots, renamed drivers, environments."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.daemons.world import NATIVE, until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

from calabash.model.request import AllocationId
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot

CAP_MIB = 1024


def test_a_forged_slot_is_refused(world: HostileWorld, mallory: User) -> None:
    forged = world.directory / f"forged-{mallory.uid}"
    uuid = world.card_state().devices[0].uuid
    device = SlotDevice(uuid=uuid, memory_limit_bytes=38 << 30, core_percent=100, policy=None, priority=0)
    create_slot(forged, SlotSpec(allocation=AllocationId("forged"), devices=(device,)))
    for path in (forged, *forged.iterdir()):
        os.chown(path, mallory.uid, mallory.uid)
    with world.unharmed():
        tenant = mallory.runs(
            world.program("hostile"),
            "hold",
            "8192",
            environment={"CALABASH_SLOT": str(forged)},
            memory_mib=CAP_MIB,
            cores=10,
        )
        line = tenant.line()
        held = int(line.split()[1]) if line.startswith("held") else 0
        assert held <= CAP_MIB, line
    shutil.rmtree(forged)


@pytest.mark.parametrize("how", ["handles", "libc-handle"])
def test_a_dlsym_that_another_look_up_found_leads_to_the_hooks(world: HostileWorld, mallory: User, how: str) -> None:
    with world.unharmed():
        tenant = mallory.runs(world.program("hostile"), how, "8192", memory_mib=CAP_MIB, cores=10)
        line = tenant.line()
        assert line.startswith("took"), line
        assert int(line.split()[1]) <= CAP_MIB


def test_a_program_that_uses_a_copy_of_the_driver_in_a_new_namespace_is_found(
    world: HostileWorld, mallory: User
) -> None:
    copy = world.directory / f"harmless-{mallory.uid}.so"
    shutil.copy(NATIVE / "simgpu" / "libcuda.so.1", copy)
    tenant = mallory.runs(world.program("hostile"), "copy", copy, "8192", memory_mib=CAP_MIB, cores=10)
    line = tenant.line()
    if line == "took 8192":
        until(tenant.dead, what="the program to be ended for what the card says it holds")
    with world.unharmed():
        pass
    copy.unlink()


@pytest.mark.parametrize("mode", ["exclusive", "timeslice"])
def test_dropping_the_visible_devices_shows_no_other_card(world: HostileWorld, mallory: User, mode: str) -> None:
    with world.unharmed():
        tenant = mallory.runs(world.program("hostile"), "seen", mode=mode)
        assert tenant.line() == "cuda 1 nvml 1"


def test_dropping_the_visible_devices_of_a_vgpu_slice_shows_no_other_card(world: HostileWorld, mallory: User) -> None:
    with world.unharmed():
        tenant = mallory.runs(world.program("hostile"), "seen", memory_mib=CAP_MIB, cores=10)
        assert tenant.line() == "cuda 1 nvml 1"
