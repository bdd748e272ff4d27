"""Cache of the owners of allocations, which reads the journal once for each."""

from __future__ import annotations

from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import NodeName
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement
from calabash.platform.tenancy.owners import AllocationOwner, AllocationOwners


class Journal:
    """Journal with allocations of user ann and tenant vision, which counts how often each one was read."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.asked: list[str] = []

    def __call__(self, allocation: AllocationId) -> AllocationRecord | None:
        self.asked.append(allocation)
        if allocation not in self.known:
            return None
        return AllocationRecord(
            id=allocation,
            state=AllocationState.RELEASED,
            request=GpuRequest(tenant="vision"),
            placement=Placement(node=NodeName("n"), mode=ModeName("vgpu"), slices=()),
            user="ann",
            uid=7,
        )


def test_it_is_asked_once_and_remembered() -> None:
    journal = Journal("a", "b")
    owners = AllocationOwners(journal)
    found = [owners.owner_of(AllocationId(name)) for name in ("a", "b", "a", "b")]
    assert found == [AllocationOwner(tenant="vision", uid=7, user="ann")] * 4
    assert journal.asked == ["a", "b"]


def test_what_is_not_known_yet_is_asked_for_again() -> None:
    journal = Journal()
    owners = AllocationOwners(journal)
    assert owners.owner_of(AllocationId("a")) is None
    journal.known.add("a")
    assert owners.owner_of(AllocationId("a")) is not None


def test_only_those_looked_up_last_are_remembered() -> None:
    journal = Journal("a", "b", "c")
    owners = AllocationOwners(journal, kept=2)
    for name in ("a", "b", "a", "c", "a", "b"):
        owners.owner_of(AllocationId(name))
    assert journal.asked == ["a", "b", "c", "b"]
