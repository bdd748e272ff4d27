"""Compute the order in which the roles of a gang start."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.kubernetes.gangs.fields import Place
from calabash.kubernetes.gangs.gang import Role
from calabash.kubernetes.gangs.owner import OrderRule
from calabash.model.errors import CalabashError


def steps_of(rule: OrderRule, roles: Sequence[Role], owner: Place) -> list[int]:
    """Return the step of the start of each role; all are 0 if the roles start together.

    Args:
        rule: the rule.
        roles: the roles.
        owner: the manifest.

    Raises:
        CalabashError: roles start after each other, or after a role that does not exist.
    """
    ordered = not rule.values or owner.text(rule.path) in rule.values
    if ordered and rule.late:
        return [int(role.name in rule.late) for role in roles]
    if ordered and rule.values:
        return list(range(len(roles)))
    return _levels(roles)


def _levels(roles: Sequence[Role]) -> list[int]:
    """Return the step of each role after the steps of the roles that it names."""
    steps: dict[str, int] = {}
    waiting = {role.name: role.after for role in roles}
    for role in roles:
        unknown = next((name for name in role.after if name not in waiting), None)
        if unknown is not None:
            raise CalabashError(
                f"role {role.name} starts after {unknown!r}, which is no role", hint="name a role of this object"
            )
    while waiting:
        ready = [name for name, after in waiting.items() if all(before in steps for before in after)]
        if not ready:
            raise CalabashError(
                f"roles start after each other: {', '.join(sorted(waiting))[:200]}", hint="remove one of the orders"
            )
        found = {name: max((steps[before] + 1 for before in waiting[name]), default=0) for name in ready}
        steps |= found
        for name in ready:
            del waiting[name]
    return [steps[role.name] for role in roles]
