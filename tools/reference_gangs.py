"""Page of the kinds whose objects are gangs (docs/reference/gang-owners.md), from the table."""

from __future__ import annotations

from calabash.kubernetes.gangs.owner import Each, GangOwner, Makes, RoleRule
from calabash.kubernetes.gangs.table import OWNERS
from calabash.kubernetes.gangs.topology import PREFERRED, REQUIRED

_HEAD = """# Gang owners

The kinds whose objects are gangs, and the fields from which a gang is read. [Gangs of owners](../concepts/gangs-of-owners.md)
explains the columns, and how to add a kind. `kubectl calabash explain-gang -f FILE` shows the gangs of a file.

| system | kind | members | pods of a role | minimum | start in steps |
|---|---|---|---|---|---|
"""

_EACH = {Each.OBJECT: "", Each.LIST: "[]", Each.MAP: ".*"}


def gangs_page() -> str:
    """Return the page."""
    rows = "".join(f"| {' | '.join(_cells(owner))} |\n" for owner in OWNERS)
    levels = "".join(f"* `{name}`: required.\n" for name in REQUIRED)
    levels += "".join(f"* `{name}`: preferred.\n" for name in PREFERRED)
    return f"{_HEAD}{rows}\n## Annotations for topology\n\nRead from the owner and from its pod templates.\n\n{levels}"


def _cells(owner: GangOwner) -> tuple[str, ...]:
    versions = ", ".join(owner.versions)
    return (
        owner.system,
        f"`{owner.kind}`, `{owner.group}` {versions}",
        _members(owner),
        "; ".join(_role(rule) for rule in owner.roles),
        " or ".join(f"`{path}`" for path in owner.minimum) or "sum of the roles",
        _order(owner),
    )


def _members(owner: GangOwner) -> str:
    naming = owner.named_by
    if naming is not None:
        found = [naming.field, *naming.labels, *naming.annotations]
        return "pods with " + " or ".join(f"`{name}`" for name in found if name) if any(found) else "of its templates"
    text = "its pods" if not owner.copies else f"its pods; `{owner.copies}` gangs"
    if owner.delegates_to:
        text += f"; a `{owner.delegates_to}` of it counts instead"
    if owner.makes is Makes.ANNOTATED:
        text += "; with an annotation only"
    return text + "".join(f"; `{one.path}: {one.value}`" for one in owner.requires)


def _role(rule: RoleRule) -> str:
    path = f"{rule.at}{_EACH[rule.each]}." if rule.at else ""
    counts = [" or ".join(f"`{_full(path, one)}`" for one in rule.replicas)] if rule.replicas else []
    if rule.less:
        counts[0] += f" less {rule.less}"
    counts += [f"`{_full(path, rule.pods)}`"] if rule.pods else []
    counts += [f"`{rule.scaling.at}[].{rule.scaling.replicas}`"] if rule.scaling is not None else []
    name = f"{rule.name}: " if rule.name and rule.each is Each.OBJECT else ""
    return name + (" times ".join(counts) or "1")


def _full(path: str, one: str) -> str:
    return one[2:] if one.startswith("$.") else f"{path}{one}"


def _order(owner: GangOwner) -> str:
    order = owner.order
    if order is None or not order.holds_pods:
        return "no"
    found = []
    if order.late or order.values:
        late = f"{', '.join(order.late)} later" if order.late else "in order"
        found.append(f"{late}, if `{order.path}` is {' or '.join(order.values)}" if order.path else late)
    found += [f"if `{rule.after}` of a role names others" for rule in owner.roles if rule.after]
    return "; ".join(found)
