"""Cards given, taken back, held open, killed pools, refused writes, in any order: in the end the machine is as before."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.node.modes.passthrough.test_passthrough_executor import CARDS, World, record

from calabash.adapters.host.pci.devices import pci_address
from calabash.adapters.host.pci.simulated import SimulatedKernel
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.sampled_from(["GPU-a", "GPU-b"]), st.sampled_from(["", "vf"])),
        st.tuples(st.just("leave"), st.integers(0, 5), st.just("")),
        st.tuples(st.just("die"), st.just(0), st.just("")),
        st.tuples(
            st.just("refuse"), st.sampled_from(["bind", "unbind", "sriov_numvfs", "driver_override"]), st.just("")
        ),
    ),
    max_size=12,
)


class Moody(SimulatedKernel):
    """Refuses one write of a kind, once."""

    refuses = ""

    def write(self, path: Path, text: str, *, timeout_s: float) -> None:
        if path.name == Moody.refuses:
            Moody.refuses = ""
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().write(path, text, timeout_s=timeout_s)


def _agree(world: World, held: dict[str, AllocationRecord]) -> None:
    """Assert that the recorded attachments, the kernel's drivers and the inventory's loans agree."""
    given = world.executor._attachments.all()
    assert {entry.allocation for entry in given} == set(held)
    tree = world.executor.machine.tree
    bound = {address for address in tree.addresses() if tree.get(address).driver == "vfio-pci"}
    assert bound == {entry.name for entry in given}
    lent = {uuid for uuid in CARDS if world.inventory.lent.loan(DeviceUuid(uuid)) is not None}
    assert lent == {entry.device for entry in given if entry.card is not None}


def _give(world: World, held: dict[str, AllocationRecord], wanted: AllocationRecord) -> None:
    try:
        world.executor.provide(wanted)
    except CalabashError:
        world.executor.leave(wanted)  # as the agent does
    else:
        held[wanted.id] = wanted


@given(STEPS)
@settings(max_examples=examples(40))
def test_records_kernel_and_loans_agree_after_every_step_and_nothing_is_left(steps: list[tuple[str, Any, str]]) -> None:
    with tempfile.TemporaryDirectory() as home, patch("calabash.node.modes.passthrough.detach._TRY_AGAIN_S", 0.01):
        world = World(Path(home))
        machine = world.executor.machine
        machine.writer.__class__ = Moody
        held: dict[str, AllocationRecord] = {}
        for number, (what, one, other) in enumerate(steps):
            if what == "give":
                _give(world, held, record(f"a{number}", one, profile=other))
            elif what == "leave" and held:
                world.executor.leave(held.pop(sorted(held)[one % len(held)]))
            elif what == "die":
                world.start()
                world.executor.machine.writer.__class__ = Moody
                world.executor.recover(list(held.values()))
            elif what == "refuse":
                Moody.refuses = one
                continue
            Moody.refuses = Moody.refuses if what == "refuse" else ""
            world.back()
            _agree(world, held)
        Moody.refuses = ""
        for over in held.values():
            world.executor.leave(over)
        world.back()
        _agree(world, {})
        tree = world.executor.machine.tree
        assert [tree.get(pci_address(address)).driver for address in CARDS.values()] == ["nvidia", "nvidia"]
        assert all(tree.get(pci_address(address)).vfs == () for address in CARDS.values())
