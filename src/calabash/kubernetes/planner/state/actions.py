"""Actions to be carried out for pods, and the explanations of waiting pods, which are reported by such actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from calabash.binder.cluster.cluster import ClusterScheduler
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.visibility import restricted_to_namespace
from calabash.kubernetes.planner.state.facts import Action, Report
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.model.errors import Reason
from calabash.model.messages import Text, in_full

REPORT_AFTER_S = 1.0  # shorter waits are not reported
REPORT_AGAIN_S = 10.0  # between reports with the same reason


class PodActions:
    """Queue of actions, and the reasons of waiting pods that are not reported yet.

    Args:
        entries: all pods.
        scheduler: returns the present scheduler.
    """

    def __init__(self, entries: Mapping[str, PodEntry], *, scheduler: Callable[[], ClusterScheduler]) -> None:
        self._entries = entries
        self._scheduler = scheduler
        self._unreported: dict[str, float] = {}  # when the pod's reason is to be reported, by UID
        self._actions: list[Action] = []

    def add(self, action: Action) -> None:
        """Append an action."""
        self._actions.append(action)

    def take(self) -> list[Action]:
        """Return and remove all actions, in order."""
        actions, self._actions = self._actions, []
        return actions

    def pod_deleted(self, uid: str) -> None:
        """Forget the explanation of a deleted pod."""
        self._unreported.pop(uid, None)

    def set_reason(self, entry: PodEntry, reason: Reason | None, message: Text) -> None:
        """Set why the pod waits (None: it does not wait), to be reported by ``add_due_reports``.

        The message is restricted to what users of the pod's namespace may read.
        """
        text = self._restricted(entry.pod, message)
        if (entry.reason, entry.message) != (reason, text):
            entry.reason, entry.message = reason, text
            if reason is not None or entry.reported is not None:
                self._unreported.setdefault(entry.facts.uid, math.inf)
            else:
                self._unreported.pop(entry.facts.uid, None)

    def add_due_reports(self, now_s: float) -> None:
        """Add reports for pods that have waited for REPORT_AFTER_S, and for reported pods that wait no longer.

        Most pods are planned at once; a report for each would cost the API server more than their plans.
        """
        for uid, before_s in list(self._unreported.items()):
            entry = self._entries[uid]
            reason, message = entry.reason, entry.message
            if reason is not None:
                due_s = min(before_s, now_s + (REPORT_AGAIN_S if reason is entry.reported else REPORT_AFTER_S))
                if due_s > now_s:
                    self._unreported[uid] = due_s
                    continue
            del self._unreported[uid]
            entry.reported = reason
            own = bool(entry.facts.node) or entry.own_condition
            self.add(Report(pod=entry.pod, reason=reason, message=message, own_condition=own))

    def text_for(self, pod: PodName, message: Text) -> str:
        """Return the text of a message without names that users of the pod's namespace may not read."""
        return in_full(self._restricted(pod, message))

    def _restricted(self, pod: PodName, message: Text) -> Text:
        def pod_of(uid: str) -> PodName | None:
            found = self._entries.get(uid)
            return found.pod if found is not None else None

        return restricted_to_namespace(message, pod.namespace, queues=lambda: self._queues_of(pod.uid), pod_of=pod_of)

    def _queues_of(self, uid: str) -> set[str]:
        """Return the pod's queue and the queues above it."""
        entry, form = self._entries.get(uid), self._scheduler().scheduler.tree.form
        number = form.index.get(entry.bundle.request.queue) if entry is not None and entry.bundle is not None else None
        path = form.paths[number] if number is not None else ()
        return {name for name, one in form.index.items() if one in path}
