"""The table of kinds whose objects are gangs: those that create pods, and groups that pods name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from calabash.kubernetes.gangs import kubernetes_kinds, scheduler_kinds, training_kinds
from calabash.kubernetes.gangs.owner import GangOwner

OWNERS: tuple[GangOwner, ...] = (*kubernetes_kinds.KINDS, *training_kinds.KINDS, *scheduler_kinds.KINDS)


def table_with(added: Iterable[GangOwner] = ()) -> Mapping[str, GangOwner]:
    """Return the table by group and kind; an added entry replaces the known one of its kind."""
    return {owner.key: owner for owner in (*OWNERS, *added)}
