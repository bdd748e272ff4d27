"""Policies by name, as people type them: ``pgb``, ``fgd``, ``bestfit``, ``pgb:1+topology:0.2``."""

from __future__ import annotations

from collections.abc import Callable

from calabash.model.errors import CalabashError
from calabash.sched.cluster.demand import Demand
from calabash.sched.policies import simple
from calabash.sched.policies.combined import CombinedPolicy
from calabash.sched.policies.fgd import FgdPolicy
from calabash.sched.policies.pgb import PgbPolicy, PgbWeights
from calabash.sched.policies.protocol import PlacementPolicy
from calabash.sched.policies.simple import SimplePolicy
from calabash.sched.policies.topology import TopologyPolicy

Maker = Callable[[Demand | None, int], PlacementPolicy]

# What priced gaps and CPU balance alone reach; loses under departures (docs/concepts/placement.md).
_PURE = PgbWeights(square=0.0, fragment=0.0, block=0.0, model=0.0, host=0.0)
# Protects room for large jobs at the cost of half a point of allocation.
_LARGE = PgbWeights(block=1.0, model=2.0)


def _simple(name: str) -> Maker:
    return lambda _demand, seed: SimplePolicy(name=name, seed=seed)


MAKERS: dict[str, Maker] = {
    "pgb": lambda demand, _: PgbPolicy(demand=demand),
    "pgb-online": lambda _demand, _seed: PgbPolicy(demand=None, name="pgb-online"),
    "pgb-pure": lambda demand, _: PgbPolicy(demand=demand, weights=_PURE, name="pgb-pure"),
    "pgb-large": lambda demand, _: PgbPolicy(demand=demand, weights=_LARGE, name="pgb-large"),
    "fgd": lambda demand, _: FgdPolicy(demand=demand or Demand()),
    "topology": lambda _demand, _seed: TopologyPolicy(),
    **{name: _simple(name) for name in simple.NAMES},
}
NAMES = tuple(MAKERS)


def policy_named(text: str, *, demand: Demand | None = None, seed: int = 0) -> PlacementPolicy:
    """The policy, or combination of policies, of this name. Raises CalabashError for an unknown one."""
    parts = []
    for piece in text.split("+"):
        name, _, weight = piece.strip().partition(":")
        maker = MAKERS.get(name)
        if maker is None:
            raise CalabashError(f"policy {name!r} is not known", hint=f"one of: {', '.join(NAMES)}")
        try:
            parts.append((maker(demand, seed), float(weight or 1)))
        except ValueError:
            raise CalabashError(
                f"weight {weight!r} of {name} is not a number", hint="write pgb:1+topology:0.2"
            ) from None
    return parts[0][0] if len(parts) == 1 and ":" not in text else CombinedPolicy(parts=tuple(parts))
