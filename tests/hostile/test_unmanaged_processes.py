"""Attacks by unmanaged processes on a card."""

from __future__ import annotations

from collections.abc import Callable

from tests.daemons.world import SIM, World, until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

GIB_20 = 20 * 1024


def _events_of(world: HostileWorld, kind: str) -> list[str]:
    return [e["message"] for e in world.events(kind)]


def test_a_program_without_a_slice_is_found_within_two_seconds(world: HostileWorld, mallory: User) -> None:
    world.forget_events()
    unmanaged = mallory.starts(world.program("hostile"), "hold", str(GIB_20), environment=world.environment_of_node())
    assert unmanaged.line() == f"held {GIB_20}"
    message = until(lambda: _events_of(world, "stranger"), what="an event about the unmanaged process")[0]
    assert str(unmanaged.pid) in message
    with world.unharmed():
        pass
    unmanaged.close()


def test_memory_that_an_unmanaged_process_holds_is_not_granted(world: HostileWorld, mallory: User, eve: User) -> None:
    world.forget_events()
    environment = world.environment_of_node()
    unmanaged = mallory.starts(world.program("hostile"), "hold", str(GIB_20), environment=environment)
    assert unmanaged.line() == f"held {GIB_20}"
    until(lambda: _events_of(world, "stranger"), what="an event about the unmanaged process")
    with world.unharmed():
        # The first card has 40 GiB: 2 of the honest tenant, 20 of the unmanaged process.
        asked = [eve.runs("/bin/cat", memory_mib=30 * 1024, cores=10) for _ in range(2)]
        until(
            lambda: all(child.dead() or world.running_allocation(child) for child in asked), what="both to be answered"
        )
        assert [a["slices"][0]["device_index"] for a in world.held_by(eve)] == [1]
    unmanaged.close()


def test_a_card_with_an_unmanaged_process_is_not_granted_exclusively(
    world: HostileWorld, mallory: User, eve: User
) -> None:
    environment = world.environment_of_node() | {"CUDA_VISIBLE_DEVICES": "1"}
    world.forget_events()
    unmanaged = mallory.starts(world.program("hostile"), "hold", "4096", environment=environment)
    assert unmanaged.line() == "held 4096"
    until(lambda: _events_of(world, "stranger"), what="an event about the unmanaged process")
    with world.unharmed():
        asked = eve.runs("/bin/cat", mode="exclusive")
        assert "refused" in until(asked.text, what="the exclusive request to be answered")
    unmanaged.close()
    until(lambda: not world.held_by(eve))


def test_a_card_with_an_unmanaged_process_takes_nothing_new_under_policy_drain(
    make_world: Callable[..., HostileWorld],
) -> None:
    world = make_world("2xA100-40GB", neighbour=True, options=("--unmanaged", "drain"))
    mallory, eve = world.user(), world.user()
    unmanaged = mallory.starts(world.program("hostile"), "hold", "64", environment=world.environment_of_node())
    assert unmanaged.line() == "held 64"
    until(lambda: _events_of(world, "stranger"), what="an event about the unmanaged process")
    with world.unharmed():
        first = eve.runs("/bin/cat", mode="exclusive", wait_s=20)  # the probe may be on the card for a moment
        until(lambda: world.running_allocation(first), what="the other card to be given")
        second = eve.runs("/bin/cat", memory_mib=64, cores=1)
        assert "refused" in until(second.text, what="the card with the unmanaged process to be refused")
        assert [a["slices"][0]["device_index"] for a in world.held_by(eve)] == [1]
    unmanaged.close()
    until(lambda: _events_of(world, "stranger_gone"), what="the end of the unmanaged process to be seen")
    after = eve.runs("/bin/cat", memory_mib=64, cores=1)
    found = until(lambda: world.running_allocation(after), what="the card to take work again")
    assert found["slices"][0]["device_index"] == 0
    first.close()
    world.settle()


def test_only_unmanaged_processes_are_killed_under_policy_kill(make_world: Callable[..., HostileWorld]) -> None:
    world = make_world("2xA100-40GB", neighbour=True, options=("--unmanaged", "kill"))
    mallory, eve = world.user(), world.user()
    tenant = eve.runs(world.program("hostile"), "hold", "512", memory_mib=2048, cores=10)
    assert tenant.line() == "held 512"
    idle = mallory.starts("/bin/cat", environment={})
    unmanaged = mallory.starts(world.program("hostile"), "hold", str(GIB_20), environment=world.environment_of_node())
    assert unmanaged.line() == f"held {GIB_20}"
    with world.unharmed():
        until(unmanaged.dead, what="the unmanaged process to be killed")
    assert unmanaged.code == -9
    assert tenant.alive()
    assert idle.alive()
    world.settle()


def test_a_program_of_a_second_pool_is_an_unmanaged_process(world: HostileWorld, mallory: User, eve: User) -> None:
    second = World(world.directory / f"second-{mallory.uid}", "")
    second.home.mkdir(mode=0o711)
    (second.home / "sim").symlink_to(world.home / "sim")
    second.sim = SIM
    try:
        second.up()
        mallory.home = second.home
        world.forget_events()
        other = mallory.runs(world.program("hostile"), "hold", str(GIB_20), memory_mib=22 * 1024, cores=10)
        assert other.line() == f"held {GIB_20}"
        until(lambda: any(str(other.pid) in m for m in _events_of(world, "stranger")), what="it to be told of")
        card = next(d for d in world.devices() if any(s["pid"] == other.pid for s in d["strangers"]))
        with world.unharmed():
            asked = [eve.runs("/bin/cat", memory_mib=30 * 1024, cores=10) for _ in range(2)]
            until(
                lambda: all(child.dead() or world.running_allocation(child) for child in asked),
                what="both to be answered",
            )
            assert [a["slices"][0]["device_index"] for a in world.held_by(eve)] == [1 - card["index"]]
        other.close()
    finally:
        second.close()
