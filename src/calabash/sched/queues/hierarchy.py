"""The form of the tree of queues: who is whose child, by number. Made anew when queues change, never changed in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calabash.model.errors import CalabashError, Reason
from calabash.sched.queues.fairshare import RESOURCES
from calabash.sched.queues.spec import ROOT, QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Queues by number: 0 is the root, parents come before their children.

    Attributes:
        specs: the queues, in that order. index: number by name.
        children: numbers of the children. paths: from the queue itself up to the root.
        managed: per resource whether any queue deserves some of it; what nobody deserves is in nobody's quota.
    """

    specs: tuple[QueueSpec, ...]
    index: Mapping[str, int]
    children: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[int, ...], ...]
    managed: tuple[bool, ...]
    leaves: tuple[str, ...]

    @classmethod
    def of(cls, specs: Iterable[QueueSpec]) -> Hierarchy:
        """Raises CalabashError: duplicate, unknown parent, circle."""
        wanted: dict[str, QueueSpec] = {}
        for spec in specs:
            if spec.name in wanted:
                raise CalabashError(f"queue {spec.name} is defined twice", hint="names are unique in the whole tree")
            wanted[spec.name] = spec
        order = _parents_first(wanted)
        index = {ROOT: 0, **{name: i for i, name in enumerate(order, 1)}}
        children: list[list[int]] = [[] for _ in index]
        paths: list[tuple[int, ...]] = [(0,)]
        for name in order:
            up = index[wanted[name].parent]
            children[up].append(index[name])
            paths.append((index[name], *paths[up]))
        return cls(
            specs=tuple(wanted[name] for name in order),
            index=index,
            children=tuple(tuple(kids) for kids in children),
            paths=tuple(paths),
            managed=tuple(any(spec.deserved[r] > 0 for spec in wanted.values()) for r in range(RESOURCES)),
            leaves=tuple(name for name in order if not children[index[name]]),
        )

    def spec(self, number: int) -> QueueSpec:
        """The queue of that number; the root has none."""
        return self.specs[number - 1]

    def require_leaf(self, name: str) -> None:
        """Raises CalabashError when jobs cannot be put on that queue."""
        number = self.index.get(name, 0)
        if number == 0:
            raise CalabashError(
                f"queue {name!r} does not exist",
                reason=Reason.NOT_FOUND,
                hint=f"one of: {', '.join(sorted(self.leaves)) or 'none is defined'}",
            )
        if self.children[number]:
            raise CalabashError(
                f"queue {name} is a parent: jobs go to its children",
                reason=Reason.BAD_REQUEST,
                hint=f"one of: {', '.join(sorted(n for n in self.leaves if number in self.paths[self.index[n]]))}",
            )

    def own_deserved(self, number: int) -> tuple[float, ...]:
        """What the queue deserves; a parent without a guarantee of its own deserves the sum of its children's."""
        own = self.spec(number).deserved
        if any(own) or not self.children[number]:
            return own
        below = [self.own_deserved(child) for child in self.children[number]]
        return tuple(sum(amounts) for amounts in zip(*below, strict=True))


def _parents_first(wanted: dict[str, QueueSpec]) -> list[str]:
    order: list[str] = []
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            circle = " -> ".join((*trail[trail.index(name) :], name))
            raise CalabashError(f"queues form a circle: {circle}", hint="a parent cannot be below its child")
        if state.get(name):
            return
        spec = wanted[name]
        if spec.parent != ROOT:
            if spec.parent not in wanted:
                raise CalabashError(
                    f"queue {name}: parent {spec.parent} does not exist",
                    reason=Reason.NOT_FOUND,
                    hint="define the parent too",
                )
            visit(spec.parent, (*trail, name))
        state[name] = 1
        order.append(name)

    for name in wanted:
        visit(name, ())
    return order
