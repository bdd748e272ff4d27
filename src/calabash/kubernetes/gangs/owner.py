"""Form of the table of gang owners: kinds whose objects create the pods of a gang, or that the pods of a gang name.

An entry says where the counts of an object are. Entries in the same form can be added from a file (``gangs.owners`` in
errors). A path is field names separated by dots, such as ``spec.template``; a number selects an entry of a list. Paths of
a role begin at the entry of the role; ``$.`` at the beginning of a path makes it begin at the owner.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from calabash.model.errors import CalabashError, Reason

OWNERS_MAX = 64
HINT = "see docs/concepts/gangs-of-owners.md"
_SEGMENT = r"[A-Za-z0-9_-]{1,63}"
Path = Annotated[str, Meta(pattern=rf"\A((\$\.)?{_SEGMENT}(\.{_SEGMENT}){{0,11}})?\Z")]
_Paths = Annotated[tuple[Path, ...], Meta(max_length=8)]
_Word = Annotated[str, Meta(max_length=253, pattern=r"\A[A-Za-z0-9._/-]*\Z")]
_Words = Annotated[tuple[_Word, ...], Meta(max_length=16)]
_Group = Annotated[str, Meta(pattern=r"\A[a-z0-9.-]{0,253}\Z")]
_Kind = Annotated[str, Meta(pattern=r"\A[A-Z][A-Za-z0-9]{0,62}\Z")]
_Plural = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9]{0,62}\Z")]
_Version = Annotated[str, Meta(pattern=r"\Av[0-9]+((alpha|beta)[0-9]+)?\Z")]
_Text = Annotated[str, Meta(max_length=200, pattern=r"\A[ -~]*\Z")]
_Small = Annotated[int, Meta(ge=0, le=1000)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    pass


class Each(StrEnum):
    """Form of a field with roles: one OBJECT, a LIST of objects, or a MAP from role names to objects."""

    OBJECT = "object"
    LIST = "list"
    MAP = "map"


class Makes(StrEnum):
    """Objects of a kind that form gangs: all (ALWAYS), or those with the annotation ``calabash.dev/gang-of-owner``."""

    ALWAYS = "always"
    ANNOTATED = "annotated"


class RoleMatch(StrEnum):
    """Comparison of a label of a pod with the name of a role: EQUAL, or the label ends with ``-`` and the name (SUFFIX)."""

    EQUAL = "equal"
    SUFFIX = "suffix"


class Condition(_Entry, frozen=True, kw_only=True):
    """A field that must have a value; a missing field has the value ``absent``."""

    path: Path
    value: _Word
    absent: _Word = ""


class TopologyRule(_Entry, frozen=True, kw_only=True):
    """Fields that request pods to be near each other.

    Args:
        required, preferred: paths of the level: a node label, or the name of a level.
        mode: path of a field that makes the required level a preferred one, if it has the value ``soft``.
        soft: see ``mode``.
        prefix: text before the level in messages.
    """

    required: Path = ""
    preferred: Path = ""
    mode: Path = ""
    soft: _Word = ""
    prefix: _Text = ""


class ScalingRule(_Entry, frozen=True, kw_only=True):
    """A list of objects that multiply roles.

    Args:
        at: path of the list.
        roles: field of an entry with the names of the multiplied roles.
        replicas, minimum: fields of an entry with the factor of the count and of the minimum; 1 if they are absent.
    """

    at: Path
    roles: Path
    replicas: Path
    minimum: Path = ""


class RoleRule(_Entry, frozen=True, kw_only=True):
    """Paths of one role, or of a list or map of roles. A role whose ``at`` is absent has no pods.

    Args:
        name: name of the role; for lists the beginning of the name of an entry without a name; for maps not used.
        at: path of the object, list or map; "" for the owner.
        each: form of ``at``.
        name_at: field of an entry of a list with the name of the role.
        lower_case: True to write the keys of a map in lower case.
        replicas: paths of the number of replicas; the first one that is present counts.
        default: number of replicas if all paths are absent.
        less: number that is subtracted from the replicas.
        none_if: path of a boolean; if it is true, the role has no pods.
        unless: path of a field; if it is present and not empty, there is no such role.
        parent_at: field with the name of another entry. An entry that others name has no pods.
        pods, pods_at_most: paths of the number of pods of a replica and of its upper limit; 1 pod if they are absent.
        subgroup: path of the number of pods in a subgroup. Default: the pods of a replica.
        minimum, maximum: paths of the least and greatest number of replicas. If there is a path of the greatest number, a
            controller scales the role, and the number of replicas is corrected to these limits.
        elastic_if: path of a boolean; unless it is true, the minimum is the number of replicas.
        elastic_roles: roles that have these limits; empty for all.
        template: paths of the pod template; the first one that is present counts.
        pod_spec: path of a pod spec, for kinds without a template.
        resources: path of the resources of a member, for kinds without template and pod spec.
        cpu, gpu_name, gpus: paths of the number of processors, and of name and number of GPU resources.
        scaling: factor of the counts.
        after: path of a list of roles after which the role starts: names or objects.
        after_name: field of these objects with the name.
        topology: fields of the role.
    """

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{0,63}\Z")] = ""
    at: Path = ""
    each: Each = Each.OBJECT
    name_at: Path = "name"
    lower_case: bool = False
    replicas: _Paths = ()
    default: _Small = 1
    less: _Small = 0
    none_if: Path = ""
    unless: Path = ""
    parent_at: Path = ""
    pods: Path = ""
    pods_at_most: Path = ""
    subgroup: Path = ""
    minimum: Path = ""
    maximum: Path = ""
    elastic_if: Path = ""
    elastic_roles: _Words = ()
    template: _Paths = ()
    pod_spec: Path = ""
    resources: Path = ""
    cpu: Path = ""
    gpu_name: Path = ""
    gpus: Path = ""
    scaling: ScalingRule | None = None
    after: Path = ""
    after_name: Path = ""
    topology: Annotated[tuple[TopologyRule, ...], Meta(max_length=4)] = ()


class OrderRule(_Entry, frozen=True, kw_only=True):
    """Order in which roles start. If ``after`` of a role names others, the role starts after these.

    Args:
        path: path of a field with the order.
        values: values of the field for which the roles start in order; empty if the order is always the same.
        late: roles that start after the others; empty if the order is that of the roles.
        holds_pods: True if the controller creates the pods of a role after those of earlier roles have started. A gang
            can then wait for the pods of the first roles only.
    """

    path: Path = ""
    values: _Words = ()
    late: _Words = ()
    holds_pods: bool = True


class Naming(_Entry, frozen=True, kw_only=True):
    """Names of the field, labels and annotations by which a pod names the object of its gang."""

    field: Path = ""
    labels: _Words = ()
    annotations: _Words = ()


class GangOwner(_Entry, frozen=True, kw_only=True):
    """One kind of the table.

    Args:
        system: name of the system, for messages and documentation.
        group, kind, plural, versions: the kind, and the versions whose fields are known, the preferred one first.
        makes: objects of the kind that form gangs.
        requires: fields without which the object forms no gang.
        serial_with: annotations of the object, of its roles or of their pod templates with which the controller creates
            pods only when another pod has been scheduled, so that the object forms no gang.
        delegates_to: kind of an object that the controller creates from this one and that has the counts. Only pods that
            an object of that kind owns too are members.
        copies: path of the number of gangs; 1 if it is absent.
        gang_per_role: True if every role is a gang of its own.
        roles: the roles.
        open_size: True if the object has only the minimum of the gang, and more pods may belong to it.
        minimum: paths of the least number of members that start together; the first one that is present counts. Default:
            the sum of the minima of the roles.
        order: order of the roles.
        topology: fields of the owner.
        role_labels: labels or annotations of a pod with its role; the first one that is present counts.
        role_match: comparison of these labels with the role.
        role_values: roles of values of the label that are not the name of the role.
        other_role: role of a pod whose label names no role.
        index_labels: labels or annotations of a pod with its number within the role.
        subgroup_labels: labels of a pod with the number of its subgroup. The index is then the number within the
            subgroup.
        copy_labels: labels of a pod with the number of its gang.
        named_by: how pods name the object. Default: the object is an owner of the pods.
        note: a limit, for ``explain-gang``.
    """

    system: _Text
    group: _Group
    kind: _Kind
    plural: _Plural
    versions: Annotated[tuple[_Version, ...], Meta(min_length=1, max_length=8)]
    makes: Makes = Makes.ALWAYS
    requires: Annotated[tuple[Condition, ...], Meta(max_length=4)] = ()
    serial_with: _Words = ()
    delegates_to: _Word = ""
    copies: Path = ""
    gang_per_role: bool = False
    roles: Annotated[tuple[RoleRule, ...], Meta(min_length=1, max_length=8)]
    open_size: bool = False
    minimum: _Paths = ()
    order: OrderRule | None = None
    topology: Annotated[tuple[TopologyRule, ...], Meta(max_length=4)] = ()
    role_labels: _Words = ()
    role_match: RoleMatch = RoleMatch.EQUAL
    role_values: Annotated[dict[_Word, _Word], Meta(max_length=16)] = {}
    other_role: _Word = ""
    index_labels: _Words = ()
    subgroup_labels: _Words = ()
    copy_labels: _Words = ()
    named_by: Naming | None = None
    note: _Text = ""

    @property
    def key(self) -> str:
        """Return the group and the kind, such as ``batch/Job``."""
        return f"{self.group}/{self.kind}"


def read_owners(tree: Any) -> tuple[GangOwner, ...]:
    """Decode the entries that an administrator adds to the table.

    Args:
        tree: a list of maps, as YAML gives it.

    Raises:
        CalabashError: BAD_FILE; the message names the entry and the field.
    """
    if not isinstance(tree, list):
        raise CalabashError(f"gangs.owners is not a list but {type(tree).__name__}", reason=Reason.BAD_FILE, hint=HINT)
    if len(tree) > OWNERS_MAX:
        raise CalabashError(
            f"gangs.owners has {len(tree)} entries, at most {OWNERS_MAX}", reason=Reason.BAD_FILE, hint=HINT
        )
    found: dict[str, GangOwner] = {}
    for number, entry in enumerate(tree):
        place = f"gangs.owners[{number}]"
        try:
            owner = msgspec.convert(entry, type=GangOwner)
        except (msgspec.ValidationError, RecursionError) as error:
            raise CalabashError(f"{place}: {error}", reason=Reason.BAD_FILE, hint=HINT) from error
        _check(owner, place)
        if owner.key in found:
            raise CalabashError(f"{place}: {owner.key} stands in the list twice", reason=Reason.BAD_FILE, hint=HINT)
        found[owner.key] = owner
    return tuple(found.values())


def _check(owner: GangOwner, place: str) -> None:
    """Refuse an entry whose parts do not fit together. Raises CalabashError(BAD_FILE)."""
    for number, role in enumerate(owner.roles):
        where = f"{place}.roles[{number}]"
        if role.each is not Each.OBJECT and not role.at:
            raise CalabashError(f"{where}: each is {role.each} without at", reason=Reason.BAD_FILE, hint=HINT)
        if role.each is Each.OBJECT and not role.name:
            raise CalabashError(f"{where}: a role without name", reason=Reason.BAD_FILE, hint=HINT)
        if role.less and not role.replicas:
            raise CalabashError(f"{where}: less is {role.less} without replicas", reason=Reason.BAD_FILE, hint=HINT)
        if role.gpus and not role.gpu_name:
            raise CalabashError(f"{where}: gpus without gpuName", reason=Reason.BAD_FILE, hint=HINT)
    fixed = [role.name for role in owner.roles if role.each is Each.OBJECT and not role.unless]
    if len(set(fixed)) < len(fixed):
        raise CalabashError(f"{place}: two roles have the same name", reason=Reason.BAD_FILE, hint=HINT)
    if owner.gang_per_role and owner.order is not None:
        raise CalabashError(f"{place}: order has no effect with gangPerRole", reason=Reason.BAD_FILE, hint=HINT)
    if owner.order is not None and owner.order.values and not owner.order.path:
        raise CalabashError(f"{place}.order: values without path", reason=Reason.BAD_FILE, hint=HINT)
