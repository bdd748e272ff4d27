"""One reconcile round of a plane: observe the fabric, carry out the steps to the desired state, observe again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import structlog

from calabash.controllers.fabric.driver import FabricIsolation, FabricView
from calabash.model.errors import CalabashError
from calabash.model.fabric import FabricCondition, FabricEndpoint, FabricState, FabricUse
from calabash.net.fabric_partitions import FabricStep, FabricStepKind, conditions, fabric_steps, memberships

log = structlog.get_logger(__name__)

OBSERVATIONS_MAX = 4  # release, attach, and a repetition if a reply was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricRound:
    """Result of one reconciliation of the partitions of a plane.

    Args:
        conditions: condition of each device on the plane.
        orders: number of steps that were carried out or tried.
        problem: the errors; "" if the plane is in the desired state.
    """

    conditions: tuple[FabricCondition, ...]
    orders: int = 0
    problem: str = ""


def fabric_round(
    driver: FabricIsolation, endpoints: Collection[FabricEndpoint], uses: Collection[FabricUse]
) -> FabricRound:
    """Bring the partitions of a plane to the desired state.

    Errors of the fabric manager are returned in the result instead of being raised.

    Args:
        endpoints: endpoints of all devices, of any plane.
        uses: the tenants that use each device.
    """
    if not driver.divides:
        return FabricRound(conditions=_undivided(driver, endpoints))
    wanted = memberships(endpoints, uses, driver.plane)
    view: FabricView | None = None
    orders, problems = 0, []
    try:
        view = driver.observe()
        for _ in range(OBSERVATIONS_MAX):
            steps = fabric_steps(wanted, view.partitions)
            if not steps:
                break
            problems = [problem for step in steps if (problem := _carry_out(driver, step, view))]
            orders += len(steps)
            view = None  # unknown until it is observed again
            view = driver.observe()
            if problems:
                break
    except CalabashError as error:
        problems.append(error.message)
    left = view is None or bool(fabric_steps(wanted, view.partitions))
    problem = "; ".join(dict.fromkeys(problems)) if left else ""
    if left and not problem:
        problem = "the fabric manager accepted an order without effect"
    if problem:
        log.warning("fabric is not in the desired state", plane=driver.plane.value, problem=problem)
    found = conditions(
        endpoints,
        uses,
        driver.plane,
        None if view is None else view.partitions,
        exposed=frozenset() if view is None else view.exposed,
        problem=problem,
    )
    return FabricRound(conditions=found, orders=orders, problem=problem)


def _carry_out(driver: FabricIsolation, step: FabricStep, view: FabricView) -> str:
    """Carry out one step; return the error, or "". A failed step does not prevent the next ones."""
    try:
        if step.kind is FabricStepKind.RELEASE:
            driver.release(step.number, step.addresses)
        elif step.kind is FabricStepKind.DROP:
            driver.drop(step.number)
        else:
            driver.attach(step.number or driver.allocate(step.tenant, view), step.addresses)
    except CalabashError as error:
        return error.message
    log.info(
        "fabric", plane=driver.plane.value, order=step.kind.value, tenant=step.tenant, addresses=len(step.addresses)
    )
    return ""


def _undivided(driver: FabricIsolation, endpoints: Collection[FabricEndpoint]) -> tuple[FabricCondition, ...]:
    cards = sorted({one.device for one in endpoints if one.plane is driver.plane})
    return tuple(
        FabricCondition(plane=driver.plane, device=card, state=FabricState.UNDIVIDED, standing=()) for card in cards
    )
