"""Fabric controller: reads which tenants use each device, reconciles all fabrics, and reports the observed conditions.

A *plane* is one of the fabrics of a cluster (InfiniBand, RoCE, NVLink). The controller stores no state. It may be
killed at any point, and the next one begins with the observed state of the fabrics.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from calabash.adapters.pool.client import ApiClient
from calabash.api import endpoints
from calabash.api.fabric import FabricUses
from calabash.controllers.fabric.driver import FabricIsolation
from calabash.controllers.fabric.reconcile import fabric_round
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.fabric import FabricCondition, FabricEndpoint, FabricUse

log = structlog.get_logger(__name__)

POLL_S = 0.25  # pause between two requests of the uses
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0
MESSAGE_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class _UsesVersion:
    pool: str
    number: int


class FabricController:
    """Control loop of all fabrics.

    Args:
        pool: client of the pool's API.
        drivers: driver of each plane.
        endpoints: the endpoints of all devices on all planes.
        every_s: seconds after which a fabric is observed again although the uses of devices have not changed.
        now_s: monotonic clock in seconds.
    """

    def __init__(
        self,
        pool: ApiClient,
        drivers: Sequence[FabricIsolation],
        endpoints: Sequence[FabricEndpoint],
        *,
        every_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._pool, self._drivers, self._endpoints = pool, drivers, endpoints
        self._every_s, self._now_s = every_s, now_s
        self._observed_version: _UsesVersion | None = None
        self._reported: tuple[_UsesVersion, tuple[FabricCondition, ...]] | None = None
        self._due_s = 0.0
        self._retry_s = 0.0

    def step(self) -> float:
        """Read the uses of devices, and reconcile all fabrics if they have changed or ``every_s`` is over.

        Returns the pause before the next step in seconds. Errors of the pool or a fabric are logged, not raised.
        """
        try:
            uses = msgspec.convert(self._pool.send(endpoints.LIST_FABRIC_USES), FabricUses)
        except (CalabashError, msgspec.ValidationError) as error:
            log.warning("device uses cannot be read from the pool", error=str(error))
            self._observed_version = self._reported = None  # the next reply may come from another pool
            return RETRY_FIRST_S
        version, now_s = _UsesVersion(uses.pool, uses.number), self._now_s()
        if version == self._observed_version and now_s < self._due_s:
            return POLL_S
        found = [FabricUse(device=DeviceUuid(use.device), tenant=use.tenant) for use in uses.uses]
        rounds = [fabric_round(driver, self._endpoints, found) for driver in self._drivers]
        all_succeeded = not any(one.problem for one in rounds)
        self._retry_s = 0.0 if all_succeeded else min(RETRY_MAX_S, max(RETRY_FIRST_S, self._retry_s * 2))
        self._due_s = self._now_s() + (self._every_s if all_succeeded else self._retry_s)
        self._report(version, tuple(condition for one in rounds for condition in one.conditions))
        return POLL_S

    def run(self, stop: threading.Event) -> None:
        """Run steps until ``stop`` is set."""
        while not stop.wait(self.step()):
            pass

    def _report(self, version: _UsesVersion, conditions: tuple[FabricCondition, ...]) -> None:
        self._observed_version = version
        if self._reported == (version, conditions):
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
            self._pool.send(
                endpoints.REPORT_FABRIC_STATUS,
                body={"pool": version.pool, "number": version.number, "cards": cards},
            )
        except CalabashError as error:
            log.warning("fabric conditions cannot be reported to the pool", error=error.message)
            self._observed_version = self._reported = None
            return
        self._reported = (version, conditions)
