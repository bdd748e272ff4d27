"""State machines as tables: (stage, event) -> next stage (pure).

An object with a life cycle has an attribute ``stage``. ``StateMachine.advance`` is the only code that changes it: other
code reports what happened as an event, and the table of the machine has the next stage. For immutable objects ``following``
returns the next stage. An event that the table does not list for the present stage is an error. ``tools.reference_states``
writes the tables as diagrams into the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class Staged(Protocol[S]):
    """An object with a life cycle."""

    stage: S


class UnlistedTransitionError(Exception):
    """Raised for an event that the table does not list for the present stage of an object."""

    def __init__(self, *, machine: str, stage: str, event: str, subject: str) -> None:
        super().__init__(f"{machine} {subject}: no transition from stage {stage} at event {event}")
        self.machine, self.stage, self.event, self.subject = machine, stage, event, subject


def leads_to(target: S, event: E, sources: Iterable[S]) -> dict[tuple[S, E], S]:
    """Return the transitions from each of the source stages to the target at the event."""
    return {(source, event): target for source in sources}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMachine(Generic[S, E]):
    """A life cycle.

    Args:
        name: kind of the objects, such as "pod".
        summary: sentences about the life cycle as a whole, for the documentation.
        initial: stage of a new object.
        ended: stages without a further transition.
        stages, events: descriptions of all stages and events.
        table: next stage by stage and event.
    """

    name: str
    summary: str
    initial: S
    ended: frozenset[S] = frozenset()
    stages: Mapping[S, str]
    events: Mapping[E, str]
    table: Mapping[tuple[S, E], S]

    def sources(self, target: S) -> tuple[S, ...]:
        """Return the other stages from which an event leads to the target, in the order of their descriptions."""
        found = {source for (source, _), following in self.table.items() if following is target}
        return tuple(stage for stage in self.stages if stage in found - {target})

    def following(self, stage: S, event: E, *, name: str) -> S:
        """Return the stage after the event, for an immutable object; see ``advance``."""
        following = self.table.get((stage, event))
        if following is None:
            raise UnlistedTransitionError(machine=self.name, stage=stage, event=event, subject=name)
        return following

    def advance(self, subject: Staged[S], event: E, *, name: str) -> None:
        """Change the stage of the object as the table says.

        Args:
            name: name of the object for the error.

        Raises:
            UnlistedTransitionError: the table has no entry for the object's stage and this event. The stage is unchanged.
        """
        subject.stage = self.table.get((subject.stage, event)) or self.following(subject.stage, event, name=name)
