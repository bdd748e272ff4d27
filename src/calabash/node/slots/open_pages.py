"""Open pages of all slots below one directory, kept open as long as their slots exist."""

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
    """Base class of both forms of slots, with their names and open pages. Methods may be called from any thread.

    Args:
        root: directory of the slots; created if it does not exist.
        mode: access rights of this directory.
    """

    def __init__(self, root: Path, *, mode: int = 0o711, names: SlotNames | None = None) -> None:
        self.root = root
        self.names = names or SlotNames()
        self._pages: dict[AllocationId, Pages] = {}
        self._changing = threading.Lock()
        with disk_full_is_a_reason(f"cannot make {root}"):
            root.mkdir(mode=mode, parents=True, exist_ok=True)
            root.chmod(mode)  # regardless of the umask

    def path(self, allocation: AllocationId) -> Path:
        """Return the path of a slot, which need not exist. Raises CalabashError if the id is not a plain name."""
        if not is_slot_name(allocation):
            raise CalabashError(f"allocation {allocation!r} is not a plain name", reason=Reason.NOT_FOUND)
        return self.root / self.names.name_of(allocation)

    def pages(self, allocation: AllocationId) -> Pages:
        """Return the pages of a slot. Raises CalabashError(BAD_FILE) if a page is missing, damaged or resized."""
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
        """Drop the open pages of a slot; each is closed when its last reader has dropped it too.

        Called after the slot was removed, so that the pages cannot be opened again.
        """
        with self._changing:
            self._pages.pop(allocation, None)
