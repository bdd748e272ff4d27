"""What is told of the multi-process service of a card: to the journal, and to whoever asks about an allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calabash.agent.modes.mps_clients import Clients
from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import AllocationId
from calabash.seams.gpu.library import DriverFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTools:
    """What a service may use of its pool: who a process is, an event (kind, reason, allocation, message), and what an
    allocation's user is to know when it is asked about."""

    allocation_of: Callable[[int], AllocationId | None]
    tell: Callable[[str, str, str, str], None]
    environment: Mapping[str, str]
    files: DriverFiles
    notes: Callable[[AllocationId, str], None]


class ServiceNews:
    """The news of one card."""

    def __init__(self, device: Device, tools: ServiceTools) -> None:
        self._device = device
        self._tools = tools

    def hit(self, kind: str, hit: Mapping[AllocationId, list[int]], cause: str) -> None:
        """Something has hit all clients: each allocation is told of its own."""
        for allocation, pids in hit.items():
            message = (
                f"{cause} on device {self._device.index} hit its client{'s' if len(pids) > 1 else ''}"
                f" {', '.join(map(str, sorted(pids)))}: every CUDA call of theirs fails, programs that start are served"
            )
            self._tools.notes(allocation, message)
            self._tools.tell(kind, Reason.NEIGHBOUR_FAULT, allocation, message)
        if not hit:
            self._tools.tell(kind, Reason.NEIGHBOUR_FAULT, "", f"{cause} on device {self._device.index} hit nobody")

    def fault(self, culprit: int, clients: Clients) -> None:
        """A client made a fatal fault; -1: nobody knows which."""
        whose = clients.whose(culprit)
        by = f"allocation {whose} (process {culprit})" if whose else f"process {culprit}" if culprit > 0 else "a client"
        self.hit("mps_fault", clients.by_allocation(), f"a fatal fault of {by}")

    def back(self, message: str) -> None:
        """Programs are served again."""
        self._tools.tell("mps_back", "", "", message)

    def slipped_in(self, pid: int, whose: AllocationId | None, owner: AllocationId) -> None:
        """It joined while the share of another was set."""
        self._tools.tell(
            "mps_slipped_in", Reason.NOT_PERMITTED, whose or "",
            f"client {pid} joined while the share of allocation {owner} was set, and was parted from the card",
        )  # fmt: skip

    def unverified(self, allocation: AllocationId, how: str) -> None:
        """What it has is not what it should have."""
        self._tools.notes(allocation, f"its share is not what the device reports: {how}")
        self._tools.tell("mps_unverified", Reason.UNVERIFIED, allocation, how)
