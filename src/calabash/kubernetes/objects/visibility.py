"""Rendering of conditions, events and error messages for the readers of one namespace.

Every user who may read objects of the namespace can read these texts. Pods, disruption budgets and queues of other
namespaces are therefore counted and not named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

from calabash.kubernetes.objects.pod_name import PodName
from calabash.model.messages import (
    ANOTHERS,
    BudgetReference,
    Name,
    Names,
    PodReference,
    QueueName,
    RequestName,
    Text,
    names,
    render,
    restricted,
)

NAMED_MAX = 3
_NOUNS: dict[type[Name], str] = {PodReference: "pod", BudgetReference: "disruption budget"}


def pod_reference(pod: PodName | None) -> PodReference:
    """Return the name of a pod for messages; None stands for a pod that no longer exists."""
    return PodReference(pod.text if pod is not None else "/")


def pod_references(pods: Iterable[PodName]) -> Names:
    """Return the names of several pods for messages, sorted."""
    return names(PodReference, sorted(pod.text for pod in pods))


def budget_reference(namespace: str, name: str) -> BudgetReference:
    """Return the name of a disruption budget for messages; "" stands for several budgets of the namespace."""
    return BudgetReference(f"{namespace}/{name}")


def for_namespace(
    text: Text,
    namespace: str,
    *,
    queues: Callable[[], Collection[str]] = lambda: (),
    pod_of: Callable[[str], PodName | None] | None = None,
) -> str:
    """Return a text as the users of a namespace may read it.

    Args:
        queues: returns the names of the queues that the users may see: the queue of the namespace and its ancestors.
        pod_of: returns the pod of a request that the text names, by the pod's UID. None if requests in the text are not
            named by UIDs of pods; their names are then redacted.
    """
    return render(text, _NamespaceViewer(namespace, queues, pod_of))


def restricted_to_namespace(
    text: Text,
    namespace: str,
    *,
    queues: Callable[[], Collection[str]],
    pod_of: Callable[[str], PodName | None],
) -> Text:
    """Return a text as ``for_namespace``, in which the names of queues stay arguments."""
    viewer = _NamespaceViewer(namespace, queues, pod_of)
    return restricted(text, viewer, kept=viewer.is_own_queue)


class _NamespaceViewer:
    """The readers of a namespace, see ``for_namespace``."""

    def __init__(
        self,
        namespace: str,
        queues: Callable[[], Collection[str]],
        pod_of: Callable[[str], PodName | None] | None,
    ) -> None:
        self._namespace = namespace
        self._queues = queues
        self._pod_of = pod_of

    def named(self, names: Sequence[Name]) -> str:
        """Return names as the users may read them, joined by commas.

        Pods and disruption budgets of the namespace are named, up to NAMED_MAX of each kind. Pods and budgets of other
        namespaces are only counted. The name of a queue is given if the users may see the queue. All else is redacted.
        """
        found = [self._as_pod(name) for name in names]
        texts = []
        for kind, noun in _NOUNS.items():
            values = [name.value for name in found if isinstance(name, kind)]
            own = [value for value in values if value.partition("/")[0] == self._namespace]
            texts += [_named(noun, value) for value in own[:NAMED_MAX]]
            texts += [f"{len(own) - NAMED_MAX} more of {self._namespace}"] if len(own) > NAMED_MAX else []
            texts += [_counted(noun, len(values) - len(own))] if len(values) > len(own) else []
        rest = [name for name in found if type(name) not in _NOUNS]
        texts += [name.value if self.is_own_queue(name) else ANOTHERS for name in rest]
        return ", ".join(texts)

    def is_own_queue(self, name: Name) -> bool:
        """Return True if the name is that of a queue that the users may see."""
        return isinstance(name, QueueName) and name.value in self._own_queues

    @cached_property
    def _own_queues(self) -> Collection[str]:
        return self._queues()

    def _as_pod(self, name: Name) -> Name:
        if not isinstance(name, RequestName) or self._pod_of is None:
            return name
        return pod_reference(self._pod_of(name.value))


def _named(noun: str, name: str) -> str:
    namespace, _, rest = name.partition("/")
    if noun == "pod":
        return name
    return f"{noun} {name}" if rest else f"several {noun}s of {namespace}"


def _counted(noun: str, count: int) -> str:
    return f"1 {noun} of another namespace" if count == 1 else f"{count} {noun}s of other namespaces"
