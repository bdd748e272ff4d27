"""Write Kubernetes events about the node, which ``kubectl describe node`` shows. Repeated events are counted."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from calabash.adapters.kube import KubeClient, KubeError
from calabash.adapters.kube.objects.core import EVENT
from calabash.model.errors import CalabashError, Reason

COMPONENT = "calabash-agent"
NAMESPACE = "default"  # namespace of node events
_TEXT_MAX = 1024
_NAME_MAX = 200


@dataclass(slots=True)
class _Told:
    name: str
    message: str
    count: int = 1


class NodeEvents:
    """Writer of the Kubernetes events about one node."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node
        self._told: dict[str, _Told] = {}
        self._failing = ""

    def report_state(self, error: CalabashError | None) -> None:
        """Write an event if the reason for which the agent refuses new allocations has changed since the last call.

        Args:
            error: the error with which new allocations are refused; None if they are granted.

        Raises:
            KubeError: the event cannot be written; the next call tries again.
        """
        reason = "" if error is None else "".join(word.capitalize() for word in error.reason.value.split("_"))
        if reason == self._failing:
            return
        if error is not None:
            hint = f"; hint: {error.hint}" if error.hint else ""
            self.report_event(reason, f"new allocations are refused: {error.message}{hint}", warning=True)
        else:
            self.report_event("Serving", "the agent grants allocations again", warning=False)
        self._failing = reason

    def report_event(self, reason: str, message: str, *, warning: bool) -> None:
        """Create an event, or increment the count of the last event with this reason if its message is the same.

        Args:
            reason, message: reason and message of the event.
            warning: True for an event of type Warning, False for type Normal.

        Raises:
            KubeError: the API server refuses the event or does not answer.
        """
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        known = self._told.get(reason)
        if known is not None and known.message == message and self._again(known, now):
            return
        name = f"{self._node[:_NAME_MAX]}.{secrets.token_hex(8)}"
        self._client.create(
            EVENT,
            {
                "metadata": {"name": name, "namespace": NAMESPACE},
                # Clients find events of nodes by the name in place of the UID, as kubelets write it.
                "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
                "type": "Warning" if warning else "Normal",
                "reason": reason,
                "message": message[:_TEXT_MAX],
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": COMPONENT, "host": self._node},
                "reportingComponent": COMPONENT,
                "reportingInstance": self._node[:128],
            },
            NAMESPACE,
        )
        self._told[reason] = _Told(name, message)

    def _again(self, known: _Told, now: str) -> bool:
        """Increment the count of an event; return False if the API server has deleted it, as it does after an hour."""
        body = {"count": known.count + 1, "lastTimestamp": now}
        try:
            self._client.patch(EVENT, known.name, NAMESPACE, body=body)
        except KubeError as error:
            if error.reason is Reason.NOT_FOUND:
                return False
            raise
        known.count += 1
        return True
