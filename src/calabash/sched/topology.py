"""Request of a gang to be placed in few domains of the network, and the order of its members.

The levels of the network are named and ordered, the outermost first, such as ``("zone", "block", "rack")``; see
``cluster.domains``. The level ``NODE_LEVEL`` is below all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from calabash.model.errors import CalabashError

NODE_LEVEL = "node"
LEVELS_MAX = 16
NaturalKey = tuple[str | int, ...]
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTopology:
    """Topology request of a gang. Members with equal values form one group, to which the request applies.

    Args:
        required: level of which one domain must hold all members of the group; "" for no condition.
        preferred: level of which one domain should hold them. If none can, the next level outwards is tried.
        slice_level: level of which one domain must hold each slice of the group; "" for no slices.
        slice_size: number of members of a slice. Members are divided by rank: the first ``slice_size`` ranks are the
            first slice. Without ranks, the members that start together are divided in natural order of their IDs.
        group: name of the group, so that two groups of one gang with the same levels are placed independently; "" for
            the group of all members with this request.
    """

    required: str = ""
    preferred: str = ""
    slice_level: str = ""
    slice_size: int = 0
    group: str = ""

    def __post_init__(self) -> None:
        if not (self.required or self.preferred or self.slice_level):
            raise CalabashError(
                "topology request names no level", hint="name a required level, a preferred level or a slice level"
            )
        if bool(self.slice_level) != (self.slice_size > 0) or self.slice_size < 0:
            raise CalabashError(
                f"topology request has slice level {self.slice_level!r} and slice size {self.slice_size}",
                hint="give both a level and a size of at least 1, or neither",
            )

    @property
    def binding(self) -> bool:
        """Return True if some placements of the members are not allowed."""
        return bool(self.required or self.slice_level)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """Key of the members of a gang that must be near each other.

    Args:
        gang: key of the gang.
        slice: number of the slice; None for the whole group.
    """

    gang: tuple[str, str, str]
    topology: GangTopology
    slice: int | None = None

    def contains(self, topology: GangTopology | None, rank: int | None) -> bool:
        """Return True if a member of the gang with this topology and rank belongs to the group."""
        if topology != self.topology:
            return False
        return self.slice is None or (rank is not None and rank // self.topology.slice_size == self.slice)


@lru_cache(maxsize=65536)
def natural_key(text: str) -> NaturalKey:
    """Return a sort key by which ``n10`` comes after ``n9``: texts and numbers in turn, beginning with a text."""
    return tuple(int(part) if index % 2 else part for index, part in enumerate(_NUMBERS.split(text)))


def check_levels(levels: Sequence[str]) -> None:
    """Check the names of the levels of a cluster.

    Raises:
        CalabashError: a level is not named, is named twice, or has the name of the level of nodes.
    """
    if len(levels) > LEVELS_MAX:
        raise CalabashError(f"{len(levels)} levels are too many", hint=f"use at most {LEVELS_MAX} levels")
    for number, level in enumerate(levels):
        if not level or level == NODE_LEVEL or level in levels[:number]:
            raise CalabashError(
                f"level {level!r} of the topology is not valid",
                hint=f"give each level a name of its own, other than {NODE_LEVEL!r}, which is below all others",
            )
