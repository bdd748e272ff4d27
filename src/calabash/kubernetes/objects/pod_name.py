"""Identity of a pod: UID, namespace and name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    """The UID, the namespace and the name that identify a pod in calls of the API server."""

    uid: str
    namespace: str
    name: str

    @property
    def text(self) -> str:
        """Return ``NAMESPACE/NAME``."""
        return f"{self.namespace}/{self.name}"
