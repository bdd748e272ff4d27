"""What both forms that rest on control groups share: everything that is asked of the group of an allocation."""

from __future__ import annotations

import contextlib
import signal
from abc import ABC, abstractmethod
from collections.abc import Collection

from calabash.model.request import AllocationId
from calabash.seams.host.cgroups import Cgroup
from calabash.seams.host.processes import Process, identify, send_signal


class GroupMembership(ABC):
    """The kernel says who is a member: whoever is in the group."""

    form = "kernel"

    @abstractmethod
    def _group(self, allocation: AllocationId) -> Cgroup | None:
        """The group of an allocation; None when it has none now."""

    def populated(self, allocation: AllocationId) -> bool:
        group = self._group(allocation)
        return group is not None and group.populated()

    def processes(self, allocation: AllocationId) -> list[Process]:
        group = self._group(allocation)
        pids = group.pids() if group is not None else []
        return [process for pid in pids if (process := identify(pid)) is not None]

    def signal(
        self, allocation: AllocationId, number: signal.Signals, *, only: Collection[Process] | None = None
    ) -> None:
        for process in self.processes(allocation):
            if only is None or process in only:
                send_signal(process, number)

    def kill(self, allocation: AllocationId) -> None:
        group = self._group(allocation)
        if group is not None:
            with contextlib.suppress(OSError):
                group.kill()

    def freeze(self, allocation: AllocationId, frozen: bool) -> None:
        group = self._group(allocation)
        if group is not None:
            with contextlib.suppress(OSError):  # it has just ended
                group.freeze(frozen)
