"""The structure of the queue tree: parents, children and paths by queue number.

A ``Hierarchy`` is immutable. A new one is built when the queues change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from calabash.model.errors import CalabashError, Reason
from calabash.sched.amounts import RESOURCES, ZERO
from calabash.sched.queues.spec import QUEUE_DEPTH_MAX, ROOT, UNLIMITED, QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Queues by number: 0 is the root, parents come before their children.

    Attributes:
        specs: the queues in the order of their numbers, without the root.
        index: number by name, root included.
        children: numbers of the children, by number.
        paths: numbers from the queue itself up to the root, by number.
        managed: per resource, True if any queue has a deserved amount of it. Resources that are not managed have no quota.
        leaves: names of the queues without children.
        limited: by number, the queues on the path to the root that have a limit.
        deserved: deserved amounts by number; a parent without a deserved amount deserves the sum of its children's.
    """

    specs: tuple[QueueSpec, ...]
    index: Mapping[str, int]
    children: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[int, ...], ...]
    managed: tuple[bool, ...]
    leaves: tuple[str, ...]
    limited: tuple[tuple[int, ...], ...]
    deserved: tuple[tuple[float, ...], ...]

    @classmethod
    def build(cls, specs: Iterable[QueueSpec]) -> Hierarchy:
        """Build the hierarchy of some queues.

        Raises:
            CalabashError: a duplicate name, an unknown parent, a cycle, or more than QUEUE_DEPTH_MAX levels.
        """
        wanted: dict[str, QueueSpec] = {}
        for spec in specs:
            if spec.name in wanted:
                raise CalabashError(
                    f"queue {spec.name} is defined twice", hint="queue names must be unique in the whole tree"
                )
            wanted[spec.name] = spec
        order = _parents_first(wanted)
        index = {ROOT: 0, **{name: i for i, name in enumerate(order, 1)}}
        children: list[list[int]] = [[] for _ in index]
        paths: list[tuple[int, ...]] = [(0,)]
        for name in order:
            up = index[wanted[name].parent]
            children[up].append(index[name])
            paths.append((index[name], *paths[up]))
            if len(paths[-1]) - 1 > QUEUE_DEPTH_MAX:
                raise queue_too_deep(name, len(paths[-1]) - 1)
        specs_in_order = tuple(wanted[name] for name in order)
        return cls(
            specs=specs_in_order,
            index=index,
            children=tuple(tuple(kids) for kids in children),
            paths=tuple(paths),
            managed=tuple(any(spec.deserved[r] > 0 for spec in wanted.values()) for r in range(RESOURCES)),
            leaves=tuple(name for name in order if not children[index[name]]),
            limited=tuple(tuple(i for i in path[:-1] if specs_in_order[i - 1].limit != UNLIMITED) for path in paths),
            deserved=_deserved(specs_in_order, children),
        )

    def spec(self, number: int) -> QueueSpec:
        """Return the spec of a queue by its number, 1 or more."""
        return self.specs[number - 1]

    def require_leaf(self, name: str) -> None:
        """Raise CalabashError if the queue does not exist or is not a leaf."""
        number = self.index.get(name, 0)
        if number == 0:
            raise CalabashError(
                f"queue {name!r} does not exist",
                reason=Reason.NOT_FOUND,
                hint=f"use one of: {', '.join(sorted(self.leaves))}" if self.leaves else "no queue is defined",
            )
        if self.children[number]:
            raise CalabashError(
                f"queue {name} is a parent queue and takes no jobs",
                reason=Reason.BAD_REQUEST,
                hint=f"use one of: {', '.join(sorted(n for n in self.leaves if number in self.paths[self.index[n]]))}",
            )


def queue_levels(parents: Mapping[str, str]) -> dict[str, int]:
    """Return the level of each queue in the tree, 1 at the top.

    A queue whose parent is unknown has level 1. Queues of a cycle, and the queues below it, have level 0.

    Args:
        parents: name of the parent by name of the queue; ROOT for a queue at the top.
    """
    found: dict[str, int] = {}
    for name in parents:
        trail: dict[str, None] = {}
        at = name
        while at in parents and at not in found and at not in trail:
            trail[at] = None
            at = parents[at]
        level = 0 if at in trail else found.get(at, 0)
        circular = at in trail or found.get(at) == 0
        for one in reversed(trail):
            level = 0 if circular else level + 1
            found[one] = level
    return found


def queue_too_deep(name: str, level: int) -> CalabashError:
    """Return the error for a queue at a level beyond QUEUE_DEPTH_MAX."""
    return CalabashError(
        f"queue {name} is at level {level} of the queue tree, the limit is {QUEUE_DEPTH_MAX} levels",
        reason=Reason.BAD_REQUEST,
        hint="set a parent that is nearer to the root",
    )


def _deserved(specs: Sequence[QueueSpec], children: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
    """Return ``Hierarchy.deserved``: the deserved amount of each queue, by number and resource."""
    found: list[tuple[float, ...]] = [ZERO] * len(children)
    for number in range(len(specs), 0, -1):  # children before their parents
        own: tuple[float, ...] = specs[number - 1].deserved
        if not any(own) and children[number]:
            own = tuple(sum(amounts) for amounts in zip(*(found[c] for c in children[number]), strict=True))
        found[number] = own
    return tuple(found)


def _parents_first(wanted: Mapping[str, QueueSpec]) -> list[str]:
    """Return the names ordered so that each queue comes after its parent.

    Raises:
        CalabashError: an unknown parent or a cycle.
    """
    order: dict[str, None] = {}
    for name in wanted:
        trail: dict[str, None] = {}
        at = name
        while at not in order:
            if at in trail:
                names = list(trail)
                circle = " -> ".join((*names[names.index(at) :], at))
                raise CalabashError(
                    f"queues form a cycle: {circle}",
                    hint="change the parent of one of them so that it is not below itself",
                )
            trail[at] = None
            parent = wanted[at].parent
            if parent == ROOT:
                break
            if parent not in wanted:
                raise CalabashError(
                    f"queue {at}: parent {parent} does not exist",
                    reason=Reason.NOT_FOUND,
                    hint=f"define queue {parent}, or set another parent",
                )
            at = parent
        order.update(dict.fromkeys(reversed(trail)))
    return list(order)
