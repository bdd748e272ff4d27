"""A mirror of what ``only`` wants, where that comes to be more than it was."""

from __future__ import annotations

from typing import Any

from calabash.adapters.kube.mirror.mirror import Mirror
from calabash.adapters.kube.objects.meta import T


class WideningMirror(Mirror[T]):
    """What ``only`` left out, and would hold by now, is listed when somebody asks for it."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self._besides: list[str] = []  # field selectors of what is to be listed
        self._besides_asked = self._besides_done = 0

    def include(self, field_selector: str) -> int:
        """List what this selects, of all that the mirror's own selectors do. ``included`` says when it has been told, given the
        number that this returns."""
        with self._lock:
            self._besides.append(field_selector)
            self._besides_asked += 1
            number = self._besides_asked
        self._cut()
        return number

    def included(self, number: int) -> bool:
        """Whether all that was asked for up to that number has been listed and told."""
        return self._besides_done >= number

    def _wants_more(self) -> bool:
        return bool(self._besides)

    def _list_more(self) -> None:
        while self._besides and not self._stopping.is_set():
            fields = ",".join(filter(None, (self._fields, self._besides[0])))
            for page in self._client.pages(
                self._kind, self._namespace, label_selector=self._labels, field_selector=fields
            ):
                self._heard()
                for obj in page.items:
                    self._put(obj, self._cache.put_ahead)
                for skipped in page.skipped:
                    self._skipped(skipped)
            with self._lock:
                del self._besides[0]
                self._besides_done += 1
