"""Find the gang and the role of a pod: by its owners, or by an object that it names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calabash.kubernetes.gangs.fields import field, labelled_number, marks
from calabash.kubernetes.gangs.gang import Gang, Role
from calabash.kubernetes.gangs.owner import GangOwner, RoleMatch
from calabash.kubernetes.gangs.resolve import gangs_of, without_gang

LEVELS_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A pod as a member of a gang.

    Args:
        gang: the gang.
        role: name of the role; "" if the pod has no label that names one.
        copy: number of the gang among the gangs of its owner; "" if objects of the kind form one gang each.
        index: number of the pod within its role, by its labels; "" if it is not known.
    """

    gang: Gang
    role: str
    copy: str = ""
    index: str = ""


def entry_of(table: Mapping[str, GangOwner], manifest: Any) -> GangOwner | None:
    """Return the entry of a manifest's kind; None if the kind or the version is not known."""
    group, version, kind = kind_of(manifest)
    owner = table.get(f"{group}/{kind}")
    return owner if owner is not None and version in owner.versions else None


def kind_of(manifest: Any) -> tuple[str, str, str]:
    """Return API group, version and kind of a manifest; "" if one is missing."""
    api, kind = field(manifest, "apiVersion"), field(manifest, "kind")
    group, _, version = api.rpartition("/") if isinstance(api, str) else ("", "", "")
    return group[:253], version[:63], kind[:63] if isinstance(kind, str) else ""


def gang_owner(table: Mapping[str, GangOwner], owners: Sequence[Any]) -> tuple[GangOwner, Any] | None:
    """Return the object whose pods are one gang, and its entry; None if there is none.

    It is the last object of the chain that forms a gang. An object that delegates does not count, because the object
    that it creates has the counts as its controller reads them. A pod that it creates itself is no member: the one that
    submits a RayJob starts when the others run.

    Args:
        table: the table, by ``GangOwner.key``.
        owners: manifests of the controllers of a pod, the pod's own controller first, at most LEVELS_MAX.
    """
    found: tuple[GangOwner, Any] | None = None
    for manifest in owners[:LEVELS_MAX]:
        owner = entry_of(table, manifest)
        if owner is None or owner.named_by is not None or owner.delegates_to:
            continue
        if not without_gang(owner, manifest):
            found = (owner, manifest)
    return found


def member_of(owner: GangOwner, manifest: Any, pod: Any) -> Member:
    """Return the membership of a pod of an object.

    Raises:
        CalabashError: the object is invalid, or the pod names no role of an object whose roles are gangs.
    """
    return member_among(owner, gangs_of(owner, manifest), pod)


def member_among(owner: GangOwner, gangs: Sequence[Gang], pod: Any) -> Member:
    """Return the membership of a pod in one of the gangs of an object; see ``member_of``."""
    role = role_of(owner, [role.name for gang in gangs for role in gang.roles], pod)
    gang = next((gang for gang in gangs if any(part.name == role for part in gang.roles)), gangs[0])
    return Member(
        gang=gang,
        role=role,
        copy=_first(owner.copy_labels, pod) if owner.copies else "",
        index=_index(owner, next((one for one in gang.roles if one.name == role), None), pod),
    )


def _index(owner: GangOwner, role: Role | None, pod: Any) -> str:
    """Return the number of a pod within its role; "" if its labels do not have it.

    In a role without subgroups, each subgroup that the labels number has one pod.
    """
    index, subgroup = _first(owner.index_labels, pod), _first(owner.subgroup_labels, pod)
    if not owner.subgroup_labels or role is None:
        return index
    if not role.subgroup_size:
        return subgroup if role.count > 1 and subgroup not in ("", "0") else index or subgroup
    number, group = labelled_number(index), labelled_number(subgroup)
    return "" if number is None or group is None else str(group * role.subgroup_size + number)


def role_of(owner: GangOwner, roles: Sequence[str], pod: Any) -> str:
    """Return the role of a pod; "" if it names none.

    Args:
        owner: entry of the kind.
        roles: names of the roles of the object.
        pod: manifest of the pod.
    """
    value = _first(owner.role_labels, pod)
    value = owner.role_values.get(value, value)
    if value in roles:
        return value
    if owner.role_match is RoleMatch.SUFFIX:
        ends = [role for role in roles if value.endswith(f"-{role}")]
        if ends:
            return max(ends, key=len)
    if value and owner.other_role in roles:
        return owner.other_role
    if "others" in roles and owner.open_size:
        return "others"
    return roles[0] if len(roles) == 1 else ""


def named_group(owner: GangOwner, pod: Any) -> str:
    """Return the name of the object of this kind that a pod names as its group; "" if it names none."""
    naming = owner.named_by
    if naming is None:
        return ""
    named = field(pod, naming.field) if naming.field else ""
    labels, annotations = marks(pod, "labels"), marks(pod, "annotations")
    candidates: Iterable[Any] = (
        named,
        *(labels.get(name) for name in naming.labels),
        *(annotations.get(name) for name in naming.annotations),
    )
    return next((name[:253] for name in candidates if isinstance(name, str) and name), "")


def _first(names: Sequence[str], pod: Any) -> str:
    found = marks(pod, "annotations") | marks(pod, "labels")
    return next((found[name] for name in names if found.get(name)), "")
