"""The table of kinds whose objects are gangs: those that create pods, and groups that pods name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calabash.kubernetes.gangs import kubernetes_kinds, scheduler_kinds, training_kinds
from calabash.kubernetes.gangs.owner import GangOwner

OWNERS: tuple[GangOwner, ...] = (*kubernetes_kinds.KINDS, *training_kinds.KINDS, *scheduler_kinds.KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKind:
    """A kind whose objects are read on the way from a pod to its owner.

    Args:
        group, kind, plural: the kind.
        versions: versions of which one is read, the preferred one first.
    """

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return the group and the kind, such as ``batch/Job``."""
        return f"{self.group}/{self.kind}"


# Kinds between a pod and its owner that form no gang: the leader pods of a LeaderWorkerSet own StatefulSets, and a Spark
# driver owns its executors.
BETWEEN = (
    ReadKind(group="", kind="Pod", plural="pods", versions=("v1",)),
    ReadKind(group="grove.io", kind="PodClique", plural="podcliques", versions=("v1alpha1",)),
    ReadKind(group="grove.io", kind="PodCliqueScalingGroup", plural="podcliquescalinggroups", versions=("v1alpha1",)),
)


def table_with(added: Iterable[GangOwner] = ()) -> Mapping[str, GangOwner]:
    """Return the table by group and kind; an added entry replaces the known one of its kind."""
    return {owner.key: owner for owner in (*OWNERS, *added)}


def read_kinds(table: Mapping[str, GangOwner]) -> Mapping[str, ReadKind]:
    """Return the kinds that are read to find the owner of a pod, by group and kind.

    Groups that pods name themselves (``named_by``) are not read.
    """
    owners = (
        ReadKind(group=one.group, kind=one.kind, plural=one.plural, versions=one.versions)
        for one in table.values()
        if one.named_by is None
    )
    return {kind.key: kind for kind in (*BETWEEN, *owners)}


def role_marks(table: Mapping[str, GangOwner]) -> tuple[str, ...]:
    """Return the labels and annotations of pods that name the role in a gang of several roles, in order."""
    marks = {name for one in table.values() if one.named_by is None for name in one.role_labels}
    return tuple(sorted(marks))
