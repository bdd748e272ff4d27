"""Operations on the control groups of an allocation, shared by the two forms of membership that use them."""

from __future__ import annotations

import contextlib
import signal
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from calabash.adapters.host.cgroups.groups import Cgroup
from calabash.adapters.host.processes import Process, identify, send_signal
from calabash.model.request import AllocationId


class GroupMembership(ABC):
    """Membership by control groups: the processes in an allocation's groups are its members; see ``Membership``."""

    form = "kernel"

    @abstractmethod
    def _groups(self, allocation: AllocationId) -> Sequence[Cgroup]:
        """Return the groups of an allocation; empty if it has none now."""

    def populated(self, allocation: AllocationId) -> bool:
        return any(group.populated() for group in self._groups(allocation))

    def changed_allocations(self) -> Collection[AllocationId] | None:
        return None

    def processes(self, allocation: AllocationId) -> list[Process]:
        return [process for pid in self.pids(allocation) if (process := identify(pid)) is not None]

    def pids(self, allocation: AllocationId) -> list[int]:
        return [pid for group in self._groups(allocation) for pid in group.pids()]

    def signal(
        self, allocation: AllocationId, number: signal.Signals, *, only: Collection[Process] | None = None
    ) -> None:
        for process in self.processes(allocation):
            if only is None or process in only:
                send_signal(process, number)

    def kill(self, allocation: AllocationId) -> None:
        for group in self._groups(allocation):
            with contextlib.suppress(OSError):
                group.kill()

    def freeze(self, allocation: AllocationId, frozen: bool) -> None:
        for group in self._groups(allocation):
            with contextlib.suppress(OSError):  # the group has just been removed
                group.freeze(frozen)
