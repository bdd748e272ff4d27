"""Find out whether a driver still lists processes of an allocation whose programs have ended.

The driver may release memory some time after a program has ended. If the card were granted before that, the programs of
the next tenant could fail for lack of memory. So the devices of an allocation count as free only when the driver lists
none of its processes any more. Drivers are called by one thread only: the thread that settles allocations leaves a
question here and finds the answer in a later round. If a driver does not answer within ANSWER_WITHIN_NS, the allocation
is released without its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calabash.adapters.clock import Clock
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.devices.inventory import Inventory
from calabash.node.membership.protocol import Membership

ANSWER_WITHIN_NS = 2_000_000_000


@dataclass(slots=True)
class _Question:
    record: AllocationRecord
    asked_ns: int
    looked: bool = False
    clear: bool = False


class Occupancy:
    """Open questions whether drivers still list processes of an allocation, and their answers.

    The callback ``asked`` is called for each new question.
    """

    def __init__(
        self,
        inventory: Inventory,
        membership: Membership,
        clock: Clock,
        *,
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        self._inventory = inventory
        self._membership = membership
        self._clock = clock
        self._questions: dict[AllocationId, _Question] = {}
        self._asked = asked

    def is_clear(self, record: AllocationRecord) -> bool:
        """Return True if the drivers list none of an allocation's processes; False while that is not known.

        Calls no driver. An unanswered question counts as clear after ANSWER_WITHIN_NS.
        """
        question = self._questions.get(record.id)
        if question is None:
            self._questions[record.id] = _Question(record, self._clock.monotonic_ns())
            self._asked()
            return False
        late = self._clock.monotonic_ns() - question.asked_ns > ANSWER_WITHIN_NS
        return question.clear or (late and not question.looked)

    def discard(self, allocation: AllocationId) -> None:
        """Drop the question about an allocation that is in use again or released."""
        self._questions.pop(allocation, None)

    def poll(self) -> bool:
        """Ask the drivers, for each open question, if they still list a process of the allocation.

        Returns True if the drivers list no process of one of the allocations any more.
        """
        news = False
        for allocation, question in list(self._questions.items()):
            if question.clear:
                continue
            listed = {pid for part in question.record.placement.slices for pid in self._listed(part.device)}
            question.clear = not any(self._membership.allocation_of(pid) == allocation for pid in listed)
            question.looked = True
            news = news or question.clear
        return news

    def _listed(self, uuid: DeviceUuid) -> list[int]:
        try:
            return [process.pid for process in self._inventory.processes(uuid)]
        except (CalabashError, KeyError):
            return []
