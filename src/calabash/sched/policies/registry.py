"""Registry of policies by name: ``pgb``, ``fgd``, ``bestfit``, ``pgb:1+topology:0.2``.

All modules of this package are imported; a module that defines ``MAKERS`` adds the policies named there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from calabash.model.errors import CalabashError
from calabash.sched import policies
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.policies.base import Maker
from calabash.sched.policies.combined import CombinedPolicy


def _discover() -> Mapping[str, Maker]:
    makers: dict[str, Maker] = {}
    for info in sorted(pkgutil.iter_modules(policies.__path__), key=lambda i: i.name):
        module = policies.__name__ + "." + info.name
        if module != __name__:
            makers.update(getattr(importlib.import_module(module), "MAKERS", {}))
    return MappingProxyType(makers)


MAKERS: Mapping[str, Maker] = _discover()
NAMES = tuple(MAKERS)


def policy_named(text: str, *, demand: Demand | None = None, seed: int = 0) -> PlacementPolicy:
    """Return the policy, or combination of policies, of a name.

    Args:
        text: name of a policy, or several with weights such as ``pgb:1+topology:0.2``.
        demand: demand for policies that learn; None if unknown.
        seed: random seed of policies with random choices.

    Raises:
        CalabashError: a name is unknown, or a weight is not a positive number.
    """
    parts = []
    for piece in text.split("+"):
        name, _, weight = piece.strip().partition(":")
        maker = MAKERS.get(name)
        if maker is None:
            raise CalabashError(f"policy {name!r} does not exist", hint=f"use one of: {', '.join(NAMES)}")
        try:
            parts.append((maker(demand, seed), float(weight or 1)))
        except ValueError:
            raise CalabashError(
                f"weight {weight!r} of policy {name} is not a number", hint="write for example pgb:1+topology:0.2"
            ) from None
    return parts[0][0] if len(parts) == 1 and ":" not in text else CombinedPolicy(parts=tuple(parts))
