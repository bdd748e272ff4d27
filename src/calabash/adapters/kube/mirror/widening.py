"""Mirror whose filter may accept more objects over time."""

from __future__ import annotations

from typing import Any

from calabash.adapters.kube.mirror.mirror import Mirror
from calabash.adapters.kube.objects.meta import T


class WideningMirror(Mirror[T]):
    """Mirror whose function ``keep`` may keep objects later that it dropped before.

    When the function keeps more than before, :meth:`include` lists the objects in question again.
    """

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self._pending_fields: list[str] = []  # field selectors that are to be listed
        self._includes_asked = self._includes_done = 0

    def include(self, field_selector: str) -> int:
        """Request a list of the objects that match a field selector and the mirror's own selectors.

        Returns the number of the request. ``included`` returns True for it when the objects have been reported.
        """
        with self._lock:
            self._pending_fields.append(field_selector)
            self._includes_asked += 1
            number = self._includes_asked
        self._cut()
        return number

    def included(self, number: int) -> bool:
        """Return True if the objects of all requests up to that number have been listed and reported."""
        return self._includes_done >= number

    def _wants_more(self) -> bool:
        return bool(self._pending_fields)

    def _list_more(self) -> None:
        while self._pending_fields and not self._stopping.is_set():
            fields = ",".join(filter(None, (self._fields, self._pending_fields[0])))
            for page in self._client.pages(
                self._kind, self._namespace, label_selector=self._labels, field_selector=fields
            ):
                self._heard()
                for obj in page.items:
                    self._put(obj, self._cache.put_ahead)
                for skipped in page.skipped:
                    self._skipped(skipped)
            with self._lock:
                del self._pending_fields[0]
                self._includes_done += 1
