"""Translate the topology that an owner requests into the levels of the cluster, for one of its pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calabash.kubernetes.gang_member import MemberTopology
from calabash.kubernetes.gangs.fields import labelled_number
from calabash.kubernetes.gangs.gang import Gang, Role, TopologyRequest
from calabash.kubernetes.objects.names import HOSTNAME


def topology_for(
    gang: Gang, role: Role, index: str, levels: Sequence[str]
) -> tuple[MemberTopology | None, tuple[str, ...]]:
    """Return the topology of a member, None if it has none, and the requested levels that the cluster does not have.

    Requests for all members count before those for one role, because the scheduler places members with equal requests
    together. A role with requests of its own is placed independently of the other roles.

    Args:
        index: number of the pod within its role; "" if it is not known.
        levels: keys of node labels that are levels of the cluster, outermost first. The name of the node is one, too.
    """
    requests = [one for one in gang.topology if one.role in ("", role.name)]
    unknown = tuple(dict.fromkeys(one.level for one in requests if one.level not in (*levels, HOSTNAME)))
    known = [one for one in requests if one.level not in unknown]
    chosen = [one for one in known if not one.role] or known
    if not chosen:
        return None, unknown
    whole = not chosen[0].role
    slices = next((one for one in chosen if one.required and one.size), None)
    return MemberTopology(
        required=_level(chosen, required=True),
        preferred=_level(chosen, required=False),
        slice_level=slices.level if slices is not None else "",
        slice_size=slices.size if slices is not None else 0,
        group="" if whole else role.name,
        rank=_rank(gang, role, index, whole=whole),
    ), unknown


def _level(requests: Sequence[TopologyRequest], *, required: bool) -> str:
    return next((one.level for one in requests if one.required is required and not one.size), "")


def _rank(gang: Gang, role: Role, index: str, *, whole: bool) -> int | None:
    """Return the number of a member in its role, or in the gang: the roles follow each other in their order."""
    number = labelled_number(index)
    if number is None:
        return 0 if role.count == 1 and not whole else None
    before: list[Role] = []
    if whole:
        for one in gang.roles:
            if one.name == role.name:
                break
            before.append(one)
    return sum(one.count for one in before) + number


def domains_of(labels: Mapping[str, str], levels: Sequence[str]) -> tuple[str, ...]:
    """Return the domains of a node by its labels, one for each level, outermost first.

    If a label of an outer level is missing, nodes of the same inner domain are in the same outer domain of their own:
    they are certainly near each other, and nothing is known about others. Inner levels without a label are left out.
    """
    found: list[str] = []
    inner = ""
    for level in reversed(levels):
        name = labels.get(level, "")
        inner = name or (inner if inner.startswith("/") or not inner else f"/{inner}")
        if inner:
            found.append(inner)
    return tuple(reversed(found))
