"""Read requests of pods to be near each other: annotations of several systems, and fields of an owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from calabash.kubernetes.gangs.fields import Place, labelled_number, marks
from calabash.kubernetes.gangs.gang import Role, TopologyRequest
from calabash.kubernetes.gangs.owner import GangOwner, TopologyRule
from calabash.kubernetes.gangs.roles import entries_of

# Annotations of an owner or of a pod template: required or preferred level.
REQUIRED = (
    "kai.scheduler/topology-required-placement",
    "kueue.x-k8s.io/podset-required-topology",
)
PREFERRED = ("kai.scheduler/topology-preferred-placement", "kueue.x-k8s.io/podset-preferred-topology")
SLICE_LEVEL, SLICE_SIZE = "kueue.x-k8s.io/podset-slice-required-topology", "kueue.x-k8s.io/podset-slice-size"
_LEVEL_MAX = 253


def topology_of(owner: GangOwner, manifest: Any, roles: Sequence[Role]) -> tuple[TopologyRequest, ...]:
    """Return the requests of an object and of its roles, without repetitions."""
    found = list(_annotated(marks(manifest, "annotations"), ""))
    place = Place(manifest, manifest)
    for rule in owner.topology:
        found += _fields(rule, place, "")
    names = {role.name for role in roles}
    for role_rule in owner.roles:
        if role_rule.topology:
            for name, entry in entries_of(role_rule, place):
                for rule in role_rule.topology:
                    found += _fields(rule, entry, name) if name in names else ()
    for role in roles:
        found += _annotated(marks(role.template, "annotations"), role.name)
    return tuple(dict.fromkeys(found))


def _fields(rule: TopologyRule, place: Place, role: str) -> Iterator[TopologyRequest]:
    soft = bool(rule.soft) and place.text(rule.mode) == rule.soft
    for path, required in ((rule.required, not soft), (rule.preferred, False)):
        level = place.text(path)
        if level:
            yield TopologyRequest(level=f"{rule.prefix}{level}", required=required, role=role)


def _annotated(annotations: dict[str, str], role: str) -> Iterator[TopologyRequest]:
    for names, required in ((REQUIRED, True), (PREFERRED, False)):
        for name in names:
            if annotations.get(name):
                yield TopologyRequest(level=annotations[name][:_LEVEL_MAX], required=required, role=role)
    level, size = annotations.get(SLICE_LEVEL, ""), labelled_number(annotations.get(SLICE_SIZE, ""))
    if level and size is not None:
        yield TopologyRequest(level=level[:_LEVEL_MAX], required=True, role=role, size=size)
