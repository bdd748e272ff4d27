"""Attacks on a card that one program holds exclusively."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.daemons.world import until
from tests.hostile.people import Child, User
from tests.hostile.world import HostileWorld

from calabash.node.slots.pages import UsagePage

ONE_PROCESS = "[devices]\none_process = true\n"


def _may_open(path: str) -> bool:
    """Return True if this user may open a device node.

    The node of a simulated card has no driver, so opening it fails with another error than a missing permission.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except PermissionError:
        return False
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    else:
        os.close(descriptor)
    return True


def _opens(user: User, node: Path) -> bool:
    return bool(user.does(_may_open, str(node)))


def _alone(world: HostileWorld, user: User, *command: str | Path) -> tuple[Child, int]:
    """Start a program that has a card exclusively; return the program and the index of the card."""
    child = user.runs(
        *(command or ("/bin/cat",)), mode="exclusive", wait_s=20
    )  # the probe may be on the card for a moment
    found: dict[str, Any] = until(lambda: world.running_allocation(child), what="the exclusive program to run")
    return child, found["slices"][0]["device_index"]


def test_the_node_of_an_exclusive_card_is_opened_by_its_tenant_only(
    world: HostileWorld, mallory: User, eve: User
) -> None:
    for index in (0, 1):
        assert world.node_of(index).is_char_device()
        assert _opens(mallory, world.node_of(index))
    with world.unharmed():
        child, card = _alone(world, eve)
        assert (_opens(eve, world.node_of(card)), _opens(mallory, world.node_of(card))) == (True, False)
        assert _opens(mallory, world.node_of(1 - card))
    child.close()
    until(lambda: not world.held_by(eve), what="the card to come back")
    assert _opens(mallory, world.node_of(card))
    assert world.node_of(card).stat().st_mode & 0o777 == 0o666


def test_the_node_of_an_exclusive_card_stays_shut_while_the_pool_is_dead(
    world: HostileWorld, mallory: User, eve: User
) -> None:
    child, card = _alone(world, eve)
    node = world.node_of(card)
    world.kill()
    assert (_opens(eve, node), _opens(mallory, node)) == (True, False)
    world.up()
    assert world.held_by(eve)
    assert (_opens(eve, node), _opens(mallory, node)) == (True, False)
    world.kill()
    child.close()
    world.up()
    until(lambda: not world.held_by(eve), what="the card to come back")
    assert until(lambda: _opens(mallory, node), what="the node to be everybody's again")
    with world.unharmed():
        pass


def test_programs_that_ended_leave_no_entry_in_the_slot_of_a_whole_card(world: HostileWorld, mallory: User) -> None:
    hostile = world.program("hostile")
    script = f"{hostile} hold 1 </dev/null; {hostile} hold 1 </dev/null; exec {hostile} hold 1"
    with world.unharmed():
        child, _ = _alone(world, mallory, "/bin/sh", "-c", script)
        usage = UsagePage.of_slot(world.slot_of(child))
        until(lambda: child.text().count("held 1") == 3, what="the third program to hold memory")
        until(lambda: [p.pid for p in usage.procs()] == [child.pid], what="the entries of the others to be freed")


def _holds(world: HostileWorld, user: User, card: int) -> str:
    """Return the output of a program that allocates memory of a card without an allocation of the pool."""
    environment = world.environment_of_node() | {"CUDA_VISIBLE_DEVICES": str(card)}
    child = user.starts(world.program("hostile"), "hold", "64", environment=environment)
    line = child.line()
    child.close()
    return line


def test_a_card_of_one_process_refuses_a_second_one_from_anywhere(make_world: Callable[..., HostileWorld]) -> None:
    world = make_world("2xA100-40GB", neighbour=True, settings=ONE_PROCESS)
    mallory, eve = world.user(), world.user()
    with world.unharmed():
        child, card = _alone(world, eve, world.program("hostile"), "hold", "64")
        assert child.line() == "held 64"
        assert "held" not in _holds(world, mallory, card)
    child.close()
    until(lambda: not world.held_by(eve), what="the card to come back")
    assert _holds(world, mallory, card) == "held 64"
    child, card = _alone(world, eve, world.program("hostile"), "hold", "64")
    assert child.line() == "held 64"
    world.kill()
    assert "held" not in _holds(world, mallory, card)
    child.close()
    world.up()
    until(lambda: not world.held_by(eve), what="the card to come back")
    assert _holds(world, mallory, card) == "held 64"
    world.settle()
