"""A waiting request, its requester and its answer."""

from __future__ import annotations

import secrets
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from calabash.adapters.host.processes import Process
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.messages import Text
from calabash.model.request import AllocationId, GpuRequest, Placement
from calabash.node.agent import Grant

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
COMMAND_CHARACTERS_MAX = 2048
COMMAND_WORDS_MAX = 64

GangKey = tuple[int, str, str, str]


def new_id() -> AllocationId:
    """Return a new allocation ID, one of 31^8: short enough to type."""
    return AllocationId("a" + "".join(secrets.choice(_ALPHABET) for _ in range(8)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """The requesting user as the kernel reports it.

    ``process`` is the requesting process; None if it is not visible to the pool, as in another PID namespace.
    """

    uid: int
    user: str
    process: Process | None = None


@dataclass(slots=True, kw_only=True)
class WaitingRequest:
    """A request that has not been answered yet.

    Args:
        created_at: submission time of the system clock, in seconds.
        answer: resolved with a Grant or a CalabashError.
        withdrawn: reason why the request was withdrawn; "" if it was not. If the request is withdrawn while it is being
            granted, its allocation is ended at once.
    """

    id: AllocationId
    request: GpuRequest
    requester: Requester
    command: tuple[str, ...]
    created_at: float
    answer: Future[Grant] = field(default_factory=Future)
    withdrawn: Text = ""

    @property
    def gang_key(self) -> GangKey | None:
        """Key of the request's gang; None without a gang.

        Gangs of different users or tenants differ, even with the same name.
        """
        request = self.request
        return gang_key(self.requester.uid, request) if request.gang else None

    def resolve(self, outcome: Grant | BaseException) -> bool:
        """Set the answer. Returns False if the request was answered or cancelled before."""
        try:
            if isinstance(outcome, BaseException):
                self.answer.set_exception(outcome)
            else:
                self.answer.set_result(outcome)
        except InvalidStateError:
            return False
        return True


def record_of(waiting: WaitingRequest, placement: Placement, *, because: str, now_s: float) -> AllocationRecord:
    """Return the allocation record that is journalled with the grant; ``because`` explains the placement."""
    who = waiting.requester
    return AllocationRecord(
        id=waiting.id,
        state=AllocationState.GRANTED,
        request=waiting.request,
        placement=placement,
        user=who.user,
        uid=who.uid,
        client_pid=who.process.pid if who.process else 0,
        client_start_time=who.process.start_time if who.process else 0,
        command=waiting.command,
        created_at=waiting.created_at,
        granted_at=now_s,
        explanation=because,
    )


def gang_key(uid: int, request: GpuRequest) -> GangKey:
    """Return the key that all members of a gang have in common: user ID, tenant, queue and gang name."""
    return (uid, request.tenant, request.queue, request.gang)


def short_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command as it is journalled, cut to COMMAND_CHARACTERS_MAX and COMMAND_WORDS_MAX.

    A cut ends with the word ``...``.
    """
    left = COMMAND_CHARACTERS_MAX
    kept: list[str] = []
    for word in command[:COMMAND_WORDS_MAX]:
        kept.append(word[:left])
        left -= len(word) + 1
        if left <= 0:
            break
    return (*kept, "...") if len(kept) < len(command) or left < 0 else tuple(kept)
