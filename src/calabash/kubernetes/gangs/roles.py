"""Compute the roles of an object: their names, numbers of pods, limits and templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from calabash.kubernetes.gangs.fields import PODS_MAX, Place, field
from calabash.kubernetes.gangs.gang import Role
from calabash.kubernetes.gangs.owner import Each, RoleRule, ScalingRule
from calabash.model.errors import CalabashError

ROLES_MAX = 256


def roles_of(rule: RoleRule, owner: Place) -> Iterator[Role]:
    """Yield the roles of a rule.

    Args:
        rule: the rule.
        owner: the manifest.

    Raises:
        CalabashError: a field is invalid; the message names it.
    """
    if rule.unless and owner.value(rule.unless):
        return
    entries = list(entries_of(rule, owner))
    parents = {place.text(rule.parent_at) for _, place in entries} if rule.parent_at else set()
    for name, place in entries:
        if name not in parents:
            yield _role(rule, name, place)


def entries_of(rule: RoleRule, owner: Place) -> Iterator[tuple[str, Place]]:
    """Yield the name and the object of each role of a rule.

    Raises:
        CalabashError: the field has another form, too many entries, or an entry without a name.
    """
    found = owner.value(rule.at)
    if found is None:
        return
    if rule.each is Each.OBJECT:
        yield rule.name, _object(owner, found, rule.at)
        return
    if not isinstance(found, list if rule.each is Each.LIST else Mapping):
        raise CalabashError(f"{rule.at} is not a {rule.each}", hint=f"write a {rule.each} of roles")
    if len(found) > ROLES_MAX:
        raise CalabashError(f"{rule.at} has {len(found)} entries", hint=f"at most {ROLES_MAX} roles")
    if isinstance(found, Mapping):
        for key, value in found.items():
            name = str(key)[:253]
            yield (name.lower() if rule.lower_case else name), _object(owner, value, f"{rule.at}.{name}")
        return
    for number, value in enumerate(found):
        place = _object(owner, value, f"{rule.at}.{number}")
        name = place.text(rule.name_at) or (f"{rule.name}{number}" if rule.name else "")
        if not name:
            raise CalabashError(f"{place.shown(rule.name_at)} is missing", hint="give the role a name")
        yield name, place


def _object(owner: Place, value: Any, path: str) -> Place:
    if not isinstance(value, Mapping):
        raise CalabashError(f"{path} is not a map", hint="write fields and values")
    return Place(owner.root, value, path)


def _role(rule: RoleRule, name: str, place: Place) -> Role:
    replicas = place.first_count(rule.replicas)
    replicas = rule.default if replicas is None else replicas
    least, greatest = None, None
    if (not rule.elastic_roles or name in rule.elastic_roles) and (not rule.elastic_if or place.true(rule.elastic_if)):
        least = place.first_count((rule.minimum,)) if rule.minimum else None
        greatest = place.first_count((rule.maximum,)) if rule.maximum else None
        if least is not None and greatest is not None and least > greatest:
            raise CalabashError(
                f"{place.shown(rule.minimum)} is {least}, more than {place.shown(rule.maximum)}, {greatest}",
                hint="write a minimum that is at most the maximum",
            )
        replicas = min(replicas, greatest) if greatest is not None else replicas
        replicas = max(replicas, least) if least is not None and rule.maximum else replicas
    replicas = max(0, replicas - rule.less)
    if rule.none_if and place.true(rule.none_if):
        replicas, least, greatest = 0, None, None
    pods = min(place.count(rule.pods, 1), place.count(rule.pods_at_most, PODS_MAX))
    factor, least_factor = _factors(rule.scaling, name, place) if rule.scaling is not None else (1, 1)
    total = replicas * pods * factor
    if total > PODS_MAX:
        raise CalabashError(f"role {name[:63]} has {total} pods", hint=f"at most {PODS_MAX} pods")
    subgroup = place.count(rule.subgroup, 0) if rule.subgroup else pods
    return Role(
        name=name,
        count=total,
        minimum=min(total, (replicas if least is None else least) * pods * least_factor),
        maximum=max(total, greatest * pods * factor) if greatest is not None else None,
        subgroup_size=subgroup if 1 < subgroup < total else 0,
        after=_after(rule, place),
        template=_template(rule, name, place),
    )


def _after(rule: RoleRule, place: Place) -> tuple[str, ...]:
    """Return the names of the roles after which the role starts."""
    found = place.value(rule.after) if rule.after else None
    entries = found if isinstance(found, list) else []
    if len(entries) > ROLES_MAX:
        raise CalabashError(f"{place.shown(rule.after)} has {len(entries)} entries", hint=f"at most {ROLES_MAX}")
    names = (field(entry, rule.after_name) for entry in entries)
    return tuple(dict.fromkeys(name[:253] for name in names if isinstance(name, str)))


def _factors(rule: ScalingRule, name: str, place: Place) -> tuple[int, int]:
    """Return the factors of the count and of the minimum of a role."""
    factor, least = 1, 1
    found = Place(place.root, place.root).value(rule.at)
    for number, entry in enumerate(found if isinstance(found, list) else ()):
        scaled = _object(place, entry, f"{rule.at}.{number}")
        names = scaled.value(rule.roles)
        if isinstance(names, list) and name in names:
            replicas = scaled.count(rule.replicas, 1)
            factor *= replicas
            least *= min(replicas, scaled.count(rule.minimum, 1)) if rule.minimum else replicas
    return factor, least


def _template(rule: RoleRule, name: str, place: Place) -> Any:
    """Return the pod template of a role; None if it has none. Some kinds have resources instead of a template."""
    for path in rule.template:
        found = place.value(path)
        if isinstance(found, Mapping):
            return found
    if rule.pod_spec and isinstance(found := place.value(rule.pod_spec), Mapping):
        return {"spec": found}
    resources: Any = place.value(rule.resources) if rule.resources else None
    if rule.cpu or rule.gpus:
        gpu, gpus, cpu = place.text(rule.gpu_name), place.value(rule.gpus), place.value(rule.cpu)
        resources = {"limits": {gpu: gpus} if gpu and gpus else {}, "requests": {"cpu": cpu} if cpu else {}}
    return {"spec": {"containers": [{"name": name, "resources": resources}]}} if resources else None
