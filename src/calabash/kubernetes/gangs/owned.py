"""The gangs of an object in a cluster, and the membership of its pods as admission writes it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from calabash.kubernetes.gang_member import GangMember
from calabash.kubernetes.gangs.fields import field
from calabash.kubernetes.gangs.gang import Gang, Role
from calabash.kubernetes.gangs.membership import Member, gang_owner, member_among
from calabash.kubernetes.gangs.near import topology_for
from calabash.kubernetes.gangs.owner import GangOwner
from calabash.kubernetes.gangs.resolve import gangs_of
from calabash.model.errors import CalabashError

_NAME_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedGangs:
    """Gangs of an object, without the pod templates.

    Args:
        entry: entry of the object's kind.
        uid, name: the object.
        gangs: its gangs.
        asking: roles whose pod templates request devices.
        levels: levels of the cluster's topology; see ``near.topology_for``.
    """

    entry: GangOwner
    uid: str
    name: str
    gangs: tuple[Gang, ...]
    asking: frozenset[str]
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedMember:
    """A pod as a member of a gang of its owner.

    Args:
        member: the membership.
        has_devices: True if members that start together with the pod request devices.
        unknown_levels: levels of a topology that the owner requests and the cluster does not have.
    """

    member: GangMember
    has_devices: bool
    unknown_levels: tuple[str, ...] = ()


def owned_gangs(
    table: Mapping[str, GangOwner],
    owners: Sequence[Any],
    asks: Callable[[Any], bool],
    levels: Sequence[str] = (),
) -> OwnedGangs | None:
    """Return the gangs of the object to which a chain of controllers leads; None if no object forms one.

    Args:
        table: the table, by ``GangOwner.key``.
        owners: manifests of the controllers of a pod, the pod's own controller first.
        asks: returns True if a pod template requests devices.
        levels: levels of the cluster's topology; see ``near.topology_for``.

    Raises:
        CalabashError: the object is invalid; the message names it.
    """
    found = gang_owner(table, owners)
    if found is None:
        return None
    entry, manifest = found
    name, uid = field(manifest, "metadata.name"), field(manifest, "metadata.uid")
    if not (isinstance(name, str) and isinstance(uid, str) and uid):
        return None
    try:
        gangs = gangs_of(entry, manifest)
    except CalabashError as error:
        raise CalabashError(
            f"{entry.kind} {name[:_NAME_MAX]}: {error.message}", reason=error.reason, hint=error.hint
        ) from error
    several = sum(len(gang.roles) for gang in gangs) > 1  # else no member is without devices if another has some
    asking = {role.name for gang in gangs for role in gang.roles if several and role.count and asks(role.template)}
    return OwnedGangs(
        entry=entry,
        uid=uid,
        name=name,
        gangs=tuple(map(_without_templates, gangs)),
        asking=frozenset(asking),
        levels=tuple(levels),
    )


def member_in(owned: OwnedGangs, pod: Any) -> OwnedMember | None:
    """Return the membership of a pod; None if the pod starts alone.

    A pod starts alone if its gang waits for no other, or if its labels do not say to which gang or step it belongs.
    """
    member = member_among(owned.entry, owned.gangs, pod)
    gang = member.gang
    role = next((role for role in gang.roles if role.name == member.role), None)
    if role is None or (gang.copies > 1 and not member.copy):
        return None
    size = gang.waits_for(role.step)
    if size <= 1:
        return None
    topology, unknown = topology_for(gang, role, member.index, owned.levels)
    together = [one for one in gang.roles if one.step == role.step or not gang.in_steps]
    return OwnedMember(
        member=GangMember(
            gang=_name(owned, member, role),
            size=size,
            owner=_clean(f"{owned.entry.kind}/{owned.name}"),
            role=_clean(role.name),
            rank=_clean(member.index),
            topology=topology,
        ),
        has_devices=any(one.name in owned.asking for one in together),
        unknown_levels=unknown,
    )


def _name(owned: OwnedGangs, member: Member, role: Role) -> str:
    """Return the name of a gang, unique among those of the namespace: objects with equal names have different UIDs."""
    step = role.step if member.gang.in_steps else 0
    alone = role.name if owned.entry.gang_per_role else ""
    parts = (owned.uid, member.copy, str(step), alone)
    digest = blake2b("\0".join(parts).encode(errors="replace"), digest_size=6).hexdigest()
    copy = f"/{member.copy}" if member.copy else ""
    return f"{owned.entry.kind}/{_clean(owned.name + copy)[:60]}@{digest}"


def _clean(text: str) -> str:
    """Return the text with ``_`` instead of characters that names of Kubernetes do not have."""
    return re.sub(r"[^A-Za-z0-9._/-]", "_", text)[:330]


def _without_templates(gang: Gang) -> Gang:
    return replace(gang, roles=tuple(replace(role, template=None) for role in gang.roles))
