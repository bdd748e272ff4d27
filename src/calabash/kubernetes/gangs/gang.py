"""A gang as an object states it: roles with numbers of pods, minimum, order and topology."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRequest:
    """A request that pods are near each other.

    Args:
        level: a node label, or the name of a level of the cluster's topology.
        required: False if the pods may be apart when there is no room.
        role: role whose pods are meant; "" for all.
        size: number of pods that are near each other; 0 for all.
    """

    level: str
    required: bool
    role: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Pods of a gang with the same template.

    Args:
        name: name of the role.
        count: number of pods.
        minimum: number of pods of the role without which the gang does not start.
        maximum: number of pods to which a controller may increase the role; None if it does not.
        subgroup_size: number of pods in each subgroup; 0 if the role has no subgroups.
        after: roles after which the role starts, as the object names them.
        step: number of steps of the start that come before the role.
        template: the pod template as the object has it; None if it has none.
    """

    name: str
    count: int
    minimum: int
    maximum: int | None = None
    subgroup_size: int = 0
    after: tuple[str, ...] = ()
    step: int = 0
    template: Any = field(default=None, compare=False, repr=False)

    @property
    def subgroups(self) -> int:
        """Return the number of subgroups."""
        return self.count // self.subgroup_size if self.subgroup_size else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A gang.

    Args:
        api_version, kind, namespace, name: the object.
        copies: number of gangs of this form that the object has.
        roles: the roles.
        minimum: number of members that start together.
        open_size: True if more pods than ``size`` may belong to the gang.
        in_steps: True if the controller creates the pods of a step when the pods of earlier steps have started. The
            members of each step then start together.
        topology: requests that pods are near each other.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    copies: int = 1
    roles: tuple[Role, ...]
    minimum: int
    open_size: bool = False
    in_steps: bool = False
    topology: tuple[TopologyRequest, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of pods of one gang."""
        return sum(role.count for role in self.roles)

    @property
    def steps(self) -> int:
        """Return the number of steps of the start."""
        return max((role.step for role in self.roles), default=0) + 1

    def waits_for(self, step: int = 0) -> int:
        """Return the number of members of a step that must exist before the first of them starts."""
        if not self.in_steps:
            return self.minimum
        return min(self.minimum, sum(role.minimum for role in self.roles if role.step == step))
