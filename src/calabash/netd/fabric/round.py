"""One round of a plane: look, order what differs, look again. What failed is said; the next round begins from what is seen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import structlog

from calabash.model.errors import CalabashError
from calabash.model.fabric import FabricCondition, FabricEndpoint, FabricState, FabricUse
from calabash.net.fabric_partitions import FabricStep, FabricStepKind, conditions, fabric_steps, memberships
from calabash.netd.fabric.driver import FabricIsolation, FabricView

log = structlog.get_logger(__name__)

LOOKS_MAX = 4  # leave, join, and once more where an answer was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricRound:
    """What a round came to; ``problem`` "" where everything is as it should be."""

    conditions: tuple[FabricCondition, ...]
    orders: int = 0
    problem: str = ""


def fabric_round(
    driver: FabricIsolation, endpoints: Collection[FabricEndpoint], uses: Collection[FabricUse]
) -> FabricRound:
    """Bring a plane as near to what is wanted as its manager lets. Never raises for what a manager does."""
    if not driver.divides:
        return FabricRound(conditions=_undivided(driver, endpoints))
    wanted = memberships(endpoints, uses, driver.plane)
    view: FabricView | None = None
    orders, problems = 0, []
    try:
        view = driver.seen()
        for _ in range(LOOKS_MAX):
            steps = fabric_steps(wanted, view.partitions)
            if not steps:
                break
            problems = [problem for step in steps if (problem := _carried_out(driver, step, view))]
            orders += len(steps)
            view = None  # while it is not seen again, nothing is known
            view = driver.seen()
            if problems:
                break
    except CalabashError as error:
        problems.append(error.message)
    left = view is None or bool(fabric_steps(wanted, view.partitions))
    problem = "; ".join(dict.fromkeys(problems)) if left else ""
    if left and not problem:
        problem = "the fabric's manager took an order and nothing of it is to be seen"
    if problem:
        log.warning("a fabric is not as it should be", plane=driver.plane.value, problem=problem)
    found = conditions(
        endpoints,
        uses,
        driver.plane,
        None if view is None else view.partitions,
        exposed=frozenset() if view is None else view.exposed,
        problem=problem,
    )
    return FabricRound(conditions=found, orders=orders, problem=problem)


def _carried_out(driver: FabricIsolation, step: FabricStep, view: FabricView) -> str:
    """What went wrong, "" nothing: an order that fails keeps no other from being given."""
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
