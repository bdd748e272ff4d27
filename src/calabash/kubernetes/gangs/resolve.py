"""Compute the gangs of an object from its entry of the table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from calabash.kubernetes.gangs.fields import PODS_MAX, Place, count, field, marks, written_count
from calabash.kubernetes.gangs.gang import Gang, Role
from calabash.kubernetes.gangs.order import steps_of
from calabash.kubernetes.gangs.owner import GangOwner, Makes
from calabash.kubernetes.gangs.roles import ROLES_MAX, roles_of
from calabash.kubernetes.gangs.topology import topology_of
from calabash.kubernetes.objects.names import GANG_OF_OWNER, GANG_SIZE
from calabash.model.errors import CalabashError

KAI_MINIMUM = "kai.scheduler/batch-min-member"
_MINIMA = (GANG_SIZE, KAI_MINIMUM)


def without_gang(owner: GangOwner, manifest: Any) -> str:
    """Return why an object of the kind forms no gang; "" if it forms one."""
    annotations = marks(manifest, "annotations")
    wanted = annotations.get(GANG_OF_OWNER, "")
    if wanted == "false":
        return f"the annotation {GANG_OF_OWNER} is false"
    if owner.makes is Makes.ANNOTATED and wanted != "true" and not any(name in annotations for name in _MINIMA):
        return f'pods of a {owner.kind} start one by one; the annotation {GANG_OF_OWNER}: "true" makes them a gang'
    place = Place(manifest, manifest)
    for condition in owner.requires:
        value = place.text(condition.path) or condition.absent
        if value != condition.value:
            return f"{condition.path} is {value[:40]}, and only {condition.value} creates all pods at once"
    serial = sorted(_all_annotations(owner, manifest).intersection(owner.serial_with)) if owner.serial_with else []
    return f"with the annotation {serial[0]}, pods are created when another pod has been scheduled" if serial else ""


def _all_annotations(owner: GangOwner, manifest: Any) -> set[str]:
    """Return the names of the annotations of an object, of the entries of its roles, and of their pod templates."""
    found = set(marks(manifest, "annotations"))
    for rule in owner.roles:
        at = field(manifest, rule.at)
        for entry in at[:ROLES_MAX] if isinstance(at, list) else [at]:
            for part in ("template", *rule.template):
                found.update(marks(field(entry, part), "annotations"))
    return found


def gangs_of(owner: GangOwner, manifest: Any) -> tuple[Gang, ...]:
    """Return the gangs of an object, which is of the owner's kind and forms gangs.

    Several gangs are returned if every role is a gang of its own.

    Raises:
        CalabashError: a field is invalid; the message names it.
    """
    if not isinstance(manifest, Mapping):
        raise CalabashError("the object is not a map", hint="write apiVersion, kind, metadata and spec")
    place = Place(manifest, manifest)
    roles = tuple(role for rule in owner.roles for role in roles_of(rule, place))
    _require_roles(owner, roles)
    order = owner.order
    if order is not None:
        steps = steps_of(order, roles, place)
        roles = tuple(replace(role, step=step) for role, step in zip(roles, steps, strict=True))
    topology = topology_of(owner, manifest, roles)
    whole = Gang(
        api_version=place.text("apiVersion"),
        kind=owner.kind,
        namespace=place.text("metadata.namespace"),
        name=place.text("metadata.name") or place.text("metadata.generateName"),
        roles=roles,
        minimum=0,
        open_size=owner.open_size,
        in_steps=order is not None and order.holds_pods and any(role.step for role in roles),
        topology=topology,
    )
    if owner.gang_per_role:
        return tuple(_alone(whole, role) for role in roles)
    return (_complete(owner, place, whole),)


def _alone(whole: Gang, role: Role) -> Gang:
    """Return the gang of one role."""
    topology = tuple(request for request in whole.topology if request.role in ("", role.name))
    return replace(whole, roles=(role,), minimum=role.minimum, topology=topology)


def _complete(owner: GangOwner, place: Place, gang: Gang) -> Gang:
    """Return the gang with its minimum and the number of gangs. Raises CalabashError if they do not fit."""
    copies = place.count(owner.copies, 1)
    if gang.size * copies > PODS_MAX:
        raise CalabashError(f"{gang.size} pods in {copies} gangs are too many", hint=f"at most {PODS_MAX} pods")
    minimum = _minimum(owner, place, gang.roles)
    if owner.open_size and minimum > gang.size:
        rest = minimum - gang.size
        gang = replace(gang, roles=(*gang.roles, Role(name="others", count=rest, minimum=rest)))
    if minimum > gang.size:
        raise CalabashError(
            f"the minimum of {minimum} exceeds the {gang.size} pods of the {owner.kind}",
            hint="no more members can start together than there are",
        )
    return replace(gang, minimum=minimum, copies=copies)


def _require_roles(owner: GangOwner, roles: tuple[Role, ...]) -> None:
    if not roles:
        places = " or ".join(sorted({rule.at for rule in owner.roles if rule.at}))
        raise CalabashError(f"the {owner.kind} has no roles: {places} is missing or empty", hint="add it")
    names = [role.name for role in roles]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CalabashError(f"two roles are called {twice!r}", hint="give each role a name of its own")
    if sum(role.count for role in roles) > PODS_MAX:
        raise CalabashError(
            f"the {owner.kind} has {sum(role.count for role in roles)} pods", hint=f"at most {PODS_MAX} pods"
        )


def _minimum(owner: GangOwner, place: Place, roles: tuple[Role, ...]) -> int:
    annotations = marks(place.root, "annotations")
    for name in _MINIMA:
        if name in annotations:
            return written_count(annotations[name], name)
    for path in owner.minimum:
        found = place.value(path)
        if found is not None:
            return count(found, place.shown(path))
    return sum(role.minimum for role in roles)
