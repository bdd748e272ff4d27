"""A pool that is killed before or after any of its writes, while it gives or fetches back: the next one puts it right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.node.modes.passthrough.test_passthrough_executor import CARDS, A, World, record

from calabash.adapters.host.pci.devices import pci_address
from calabash.adapters.host.pci.simulated import SimulatedKernel
from calabash.adapters.host.pci.simulated_bus import SimulatedPci

WRITES = 8  # more than any of these ways has


class Killed(SystemExit):
    """The pool ends here; no handler of its own runs."""


class Deadly(SimulatedKernel):
    """Lets so many writes pass, and then none; the last one may still have had its effect."""

    left = -1
    takes_effect = False
    killed = False

    def write(self, path: Path, text: str, *, timeout_s: float) -> None:
        if Deadly.killed:
            raise Killed
        Deadly.killed = Deadly.left == 0
        Deadly.left -= 1
        if not Deadly.killed or Deadly.takes_effect:
            super().write(path, text, timeout_s=timeout_s)
        if Deadly.killed:
            raise Killed

    @classmethod
    def after(cls, writes: int, *, takes_effect: bool) -> None:
        cls.left, cls.takes_effect, cls.killed = writes, takes_effect, False


def _plain(home: Path) -> World:
    return World(home)


def _mediated(home: Path) -> World:
    kernel = SimulatedKernel(home / "root")
    kernel.plug(SimulatedPci(address=A, group=1, types={"nvidia-222": "framebuffer=8192M, max_instance=2"}))
    return World(home)


def _listed(home: Path) -> World:
    world = World(home)
    for function in world.executor.machine.functions.make(A, 2):
        listed = home / "root/sys/bus/pci/devices" / function / "nvidia"
        listed.mkdir()
        (listed / "creatable_vgpu_types").write_text("ID : vGPU Name\n945 : NVIDIA A100-10C\n")
        (listed / "current_vgpu_type").write_text("0\n")
    world.start()
    return world


def _shown(world: World) -> dict[str, object]:
    """Return the state that an attachment changes: files of sysfs, drivers and records."""
    tree, root = world.executor.machine.tree, world.root
    card = tree.get(A)
    types = {
        str(file.relative_to(root)): file.read_text()
        for name in ("current_vgpu_type", "available_instances")
        for file in (root / "sys").rglob(name)
    }
    return {
        "drivers": [tree.get(pci_address(address)).driver for address in CARDS.values()],
        "functions": card.vfs,
        "types": types,
        "mediated": sorted(p.name for p in (root / "sys/bus/mdev/devices").glob("*")),
        "groups": sorted(p.name for p in (root / "sys/kernel/iommu_groups").iterdir()),
        "book": world.executor._attachments.all(),
    }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread that is killed
@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("while_giving", [True, False], ids=["giving", "fetching"])
@pytest.mark.parametrize(
    ("made", "profile"),
    [(_plain, ""), (_plain, "vf"), (_mediated, "nvidia-222"), (_listed, "NVIDIA A100-10C")],
    ids=["card", "function", "mediated", "type"],
)
def test_whichever_write_was_the_last_all_is_as_before(
    tmp_path: Path, made: Callable[[Path], World], profile: str, while_giving: bool, takes_effect: bool
) -> None:
    deaths = 0
    for writes in range(WRITES):
        world = made(tmp_path / str(writes))
        before, held = _shown(world), record("a1", "GPU-a", profile=profile)
        Deadly.after(writes if while_giving else 1000, takes_effect=takes_effect)
        world.executor.machine.writer.__class__ = Deadly
        try:
            world.executor.provide(held)
            Deadly.after(writes, takes_effect=takes_effect)
            world.executor.leave(held)
        except Killed:
            pass
        _ended(world)
        deaths += Deadly.killed
        world.start()  # the next pool: what was being given was never granted, what was being fetched is over
        world.executor.recover([])
        world.back()
        assert _shown(world) == before, f"killed at write {writes}"
    assert 1 <= deaths < WRITES, "every write was once the last, and there are no more"


def _ended(world: World) -> None:
    """The killed pool's thread is gone too."""
    fetching: threading.Thread | None = world.executor._detaching._thread
    if fetching is not None:
        fetching.join(60)
        assert not fetching.is_alive()
