"""The program that keeps fabrics as the pool's grants want them: asks who has which card, makes a round of each plane, tells
what it saw. It keeps nothing: it may end at any moment, and the next one begins from what it sees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import structlog

from calabash.api.fabric import PATH, FabricUses
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.fabric import FabricCondition, FabricEndpoint, FabricUse
from calabash.netd.fabric.driver import FabricIsolation
from calabash.netd.fabric.round import fabric_round

log = structlog.get_logger(__name__)

LOOK_S = 0.25  # between two questions who has what
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0
MESSAGE_CHARACTERS_MAX = 500


class PoolFace(Protocol):
    """What of a pool's API is asked here."""

    def get(self, path: str, *, timeout_s: float = 30.0) -> Any: ...

    def put(self, path: str, body: Any, *, timeout_s: float = 30.0) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Moment:
    pool: str
    number: int


class FabricController:
    """One loop.

    Args:
        every_s: the longest time between two looks at fabrics on which nothing should have changed.
        now_s: a clock that only goes forward.
    """

    def __init__(
        self,
        pool: PoolFace,
        drivers: Sequence[FabricIsolation],
        endpoints: Sequence[FabricEndpoint],
        *,
        every_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._pool, self._drivers, self._endpoints = pool, drivers, endpoints
        self._every_s, self._now_s = every_s, now_s
        self._seen: _Moment | None = None
        self._told: tuple[_Moment, tuple[FabricCondition, ...]] | None = None
        self._due_s = 0.0
        self._retry_s = 0.0

    def step(self) -> float:
        """Whatever there is to do now; seconds until there may be more. Never raises for what the pool or a fabric does."""
        try:
            uses = msgspec.convert(self._pool.get(f"{PATH}/uses"), FabricUses)
        except (CalabashError, msgspec.ValidationError) as error:
            log.warning("the pool does not say who has which card", error=str(error))
            self._seen = self._told = None  # it may be another one when it answers again
            return RETRY_FIRST_S
        moment, now_s = _Moment(uses.pool, uses.number), self._now_s()
        if moment == self._seen and now_s < self._due_s:
            return LOOK_S
        found = [FabricUse(device=DeviceUuid(use.device), tenant=use.tenant) for use in uses.uses]
        rounds = [fabric_round(driver, self._endpoints, found) for driver in self._drivers]
        well = not any(one.problem for one in rounds)
        self._retry_s = 0.0 if well else min(RETRY_MAX_S, max(RETRY_FIRST_S, self._retry_s * 2))
        self._due_s = self._now_s() + (self._every_s if well else self._retry_s)
        self._tell(moment, tuple(condition for one in rounds for condition in one.conditions))
        return LOOK_S

    def run(self, stop: threading.Event) -> None:
        """Until it is told to stop."""
        while not stop.wait(self.step()):
            pass

    def _tell(self, moment: _Moment, conditions: tuple[FabricCondition, ...]) -> None:
        self._seen = moment
        if self._told == (moment, conditions):
            return
        cards = [
            {
                "plane": one.plane.value,
                "device": one.device,
                "state": one.state.value,
                "standing": None if one.standing is None else list(one.standing),
                "tenant": one.tenant,
                "number": one.number,
                "message": one.message[:MESSAGE_CHARACTERS_MAX],
            }
            for one in conditions
        ]
        try:
            self._pool.put(f"{PATH}/status", {"pool": moment.pool, "number": moment.number, "cards": cards})
        except CalabashError as error:
            log.warning("the pool does not take what fabrics are like", error=error.message)
            self._seen = self._told = None
            return
        self._told = (moment, conditions)
