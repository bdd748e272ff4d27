"""Periods without faults and other load, in which ``shares`` measures what tenants get of a card under pressure."""

from __future__ import annotations

import threading

from bench.soak.world import World

EVERY_S = 150.0
LASTS_S = 40.0  # running programs end within ten seconds; the rest is measured


def wait_out(world: World) -> None:
    """Wait until the calm period, if there is one, or the soak is over."""
    while world.calm.is_set() and not world.over.wait(0.2):
        pass


class Calm:
    """Thread that makes one calm period after another until the soak is over."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.thread = threading.Thread(target=self._go, name="calm", daemon=True)

    def _go(self) -> None:
        world = self.world
        while not world.over.wait(EVERY_S):
            world.log.line("calm", f"for {LASTS_S:g} s nothing is broken, and shares are measured alone", aloud=True)
            world.calm.set()
            world.over.wait(LASTS_S)
            world.calm.clear()
            world.log.line("calm", "it is over")
