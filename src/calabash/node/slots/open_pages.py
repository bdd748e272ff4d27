"""The pages of all slots below one directory, opened once and kept open as long as their slots live."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.files import disk_full_is_a_reason
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.slots.names import SlotNames, is_slot_name
from calabash.node.slots.pages import LimitsPage, UsagePage


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Both pages of one slot."""

    limits: LimitsPage
    usage: UsagePage


class SlotPages:
    """What both forms of slots have in common: names and open pages. Methods may be called from any thread."""

    def __init__(self, root: Path, *, mode: int = 0o711, names: SlotNames | None = None) -> None:
        self.root = root
        self.names = names or SlotNames()
        self._pages: dict[AllocationId, Pages] = {}
        self._changing = threading.Lock()
        with disk_full_is_a_reason(f"cannot make {root}"):
            root.mkdir(mode=mode, parents=True, exist_ok=True)
            root.chmod(mode)  # whatever the umask is

    def path(self, allocation: AllocationId) -> Path:
        """Return where the slot is or would be. Raises CalabashError for an id that is no plain name."""
        if not is_slot_name(allocation):
            raise CalabashError(f"allocation {allocation!r} is not a plain name", reason=Reason.NOT_FOUND)
        return self.root / self.names.name_of(allocation)

    def pages(self, allocation: AllocationId) -> Pages:
        """The pages of a slot. Raises CalabashError(BAD_FILE) when they are not what the pool has made."""
        found = self._pages.get(allocation)
        if found is None:
            path = self.path(allocation)
            with self._changing:
                found = self._pages.get(allocation)
                if found is None:
                    found = Pages(limits=LimitsPage.of_slot(path), usage=UsagePage.of_slot(path))
                    self._pages[allocation] = found
        return found

    def drop(self, allocation: AllocationId) -> None:
        """Let go of its pages; whoever still reads them holds them a moment longer. To be called when the slot is gone:
        nothing of it can be opened after."""
        with self._changing:
            self._pages.pop(allocation, None)
