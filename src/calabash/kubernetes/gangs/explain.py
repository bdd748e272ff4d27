"""Describe the gangs of the objects in a file, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from calabash.kubernetes.gangs.amounts import MemberAmounts, amounts_of
from calabash.kubernetes.gangs.fields import field, marks, written_count
from calabash.kubernetes.gangs.gang import Gang, Role
from calabash.kubernetes.gangs.membership import kind_of, named_group
from calabash.kubernetes.gangs.owner import GangOwner
from calabash.kubernetes.gangs.resolve import gangs_of, without_gang
from calabash.kubernetes.objects import names
from calabash.model.errors import CalabashError
from calabash.model.strict_yaml import YamlLimits, read_documents

BYTES_MAX = 1 << 20
OBJECTS_MAX = 1000
LIMITS = YamlLimits(
    bytes_max=BYTES_MAX, depth_max=48, hint="`kubectl apply --dry-run=client -f FILE` checks the syntax"
)
KUEUE_GROUP, KUEUE_COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Description of one object of a file.

    Args:
        place: position in the file, such as "job.yaml: document 2".
        kind, api_version, name: the object.
        gangs: its gangs; empty if it forms none.
        reason: why it forms no gang; "" if it forms one.
        invalid: True if the kind is known and the object is not valid.
        note: a limit of the kind.
    """

    place: str
    kind: str
    api_version: str
    name: str
    gangs: tuple[Gang, ...] = ()
    reason: str = ""
    invalid: bool = False
    note: str = ""


def explain_file(text: str, file: str, table: Mapping[str, GangOwner]) -> list[Explanation]:
    """Return the description of each object of a YAML file, in its order.

    Pods that name the same group by labels or annotations are described once, at the first of them.

    Args:
        text: contents of the file.
        file: name of the file, for messages.
        table: the table, by ``GangOwner.key``.

    Raises:
        CalabashError: the file is not valid YAML, or exceeds a limit.
    """
    found: list[Explanation] = []
    grouped: dict[str, list[Any]] = {}
    for place, manifest in _objects(text, file):
        if len(found) >= OBJECTS_MAX:
            raise CalabashError(f"{place}: more than {OBJECTS_MAX} objects", hint="split the file")
        group = group_of_labels(manifest) if kind_of(manifest) == ("", "v1", "Pod") else ""
        if group and group in grouped:
            grouped[group].append(manifest)
        elif group:
            grouped[group] = [manifest]
        if not group or len(grouped[group]) == 1:
            found.append(_explained(place, manifest, table))
    return found


def amounts_or_reason(role: Role) -> tuple[MemberAmounts | None, str]:
    """Return the amounts of a member of a role; None with the reason if they are not known."""
    if role.template is None:
        return None, "no pod template"
    try:
        return amounts_of(role.template), ""
    except CalabashError as error:
        return None, error.message


def group_of_labels(pod: Any) -> str:
    """Return the name of the group that labels or annotations of a pod state together with its size; "" if none."""
    return marks(pod, "annotations").get(names.GANG, "") or marks(pod, "labels").get(KUEUE_GROUP, "")


def _objects(text: str, file: str) -> Iterator[tuple[str, Any]]:
    for number, document in enumerate(read_documents(text, file, LIMITS), start=1):
        place = f"{file}: document {number}" if file else f"document {number}"
        items = field(document, "items")
        if document is None:
            continue
        if isinstance(items, list) and str(field(document, "kind")).endswith("List"):
            yield from ((f"{place}, item {i}", item) for i, item in enumerate(items, start=1))
        else:
            yield place, document


def _explained(place: str, manifest: Any, table: Mapping[str, GangOwner]) -> Explanation:
    group, version, kind = kind_of(manifest)
    name = field(manifest, "metadata.name") or field(manifest, "metadata.generateName")
    base = Explanation(
        place=place,
        kind=kind,
        api_version=f"{group}/{version}" if group else version,
        name=name[:253] if isinstance(name, str) else "",
    )
    try:
        if not kind or not version:
            raise CalabashError("apiVersion or kind is missing", hint="write both")
        if (group, kind) == ("", "Pod"):
            gang, reason = _pod(manifest, table)
            return replace(base, gangs=(gang,) if gang is not None else (), reason=reason)
        owner = table.get(f"{group}/{kind}")
        reason = _reason(owner, version, manifest)
        if owner is None or reason:
            return replace(base, reason=reason)
        return replace(base, gangs=gangs_of(owner, manifest), note=owner.note)
    except CalabashError as error:
        return replace(base, reason=f"{error.message}; {error.hint}", invalid=True)


def _reason(owner: GangOwner | None, version: str, manifest: Any) -> str:
    """Return why an object forms no gang; "" if it forms one."""
    if owner is None:
        return "the kind is not in the table of gang owners"
    if version not in owner.versions:
        return f"version {version} of {owner.kind} is not known, only {', '.join(owner.versions)}"
    return without_gang(owner, manifest)


def _pod(pod: Any, table: Mapping[str, GangOwner]) -> tuple[Gang | None, str]:
    """Return the gang of a pod that states its name and size itself, or None and the reason why there is none."""
    annotations = marks(pod, "annotations")
    for name, size in ((names.GANG, names.GANG_SIZE), (KUEUE_GROUP, KUEUE_COUNT)):
        group = (annotations | marks(pod, "labels")).get(name, "")
        if group:
            count = written_count(annotations.get(size, ""), size)
            role = Role(name="members", count=count, minimum=count, template=pod)
            namespace = field(pod, "metadata.namespace")
            where = namespace[:253] if isinstance(namespace, str) else ""
            return Gang(api_version="v1", kind="Pod", namespace=where, name=group, roles=(role,), minimum=count), ""
    for owner in table.values():
        group = named_group(owner, pod)
        if group:
            return None, f"it belongs to the {owner.kind} {group} of {owner.system}, which has the size of the gang"
    return None, "it names no group"
