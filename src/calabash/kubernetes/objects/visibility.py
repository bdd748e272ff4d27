"""Redaction of conditions, events and error messages for the readers of one namespace.

Every user who may read objects of the namespace can read these texts. Pods, disruption budgets and queues of other
namespaces are therefore counted and not named. Inside the product, texts contain a mark in place of each name
(``model.mentions``). This module replaces each mark by the name or, if the reader must not see it, by a count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from calabash.kubernetes.objects.pod_name import PodName
from calabash.model.mentions import ANOTHERS, Mentioned, mention, mentions, render_lists

NAMED_MAX = 3
_NOUNS = {Mentioned.POD: "pod", Mentioned.BUDGET: "disruption budget"}


def pod_mention(pod: PodName | None) -> str:
    """Return the mark that stands for a pod in a text; None is a pod that no longer exists."""
    return mention(Mentioned.POD, pod.text if pod is not None else "/")


def pod_mentions(pods: Iterable[PodName]) -> str:
    """Return the mark that stands for several pods in a text, sorted by name."""
    return mentions(Mentioned.POD, sorted(pod.text for pod in pods))


def budget_mention(namespace: str, name: str) -> str:
    """Return the mark that stands for a disruption budget; the name "" is for several budgets of the namespace."""
    return mention(Mentioned.BUDGET, f"{namespace}/{name}")


def for_namespace(
    text: str,
    namespace: str,
    *,
    queues: Callable[[], Collection[str]] = lambda: (),
    pod_of: Callable[[str], PodName | None] | None = None,
) -> str:
    """Return a text with marks as the users of a namespace may read it.

    Args:
        text: a text with marks.
        namespace: the namespace.
        queues: returns the names of the queues that the users may see: the queue of the namespace and its ancestors.
        pod_of: returns the pod of a marked request, by its UID. None if marks of requests do not contain UIDs of pods;
            they are then redacted.
    """

    def words(found: list[tuple[str, str]]) -> str:
        named = [_as_pod(kind, name, pod_of) for kind, name in found]
        texts = []
        for kind, noun in _NOUNS.items():
            names = [name for one, name in named if one == kind]
            own = [name for name in names if name.partition("/")[0] == namespace]
            texts += [_named(noun, name) for name in own[:NAMED_MAX]]
            texts += [f"{len(own) - NAMED_MAX} more of {namespace}"] if len(own) > NAMED_MAX else []
            texts += [_counted(noun, len(names) - len(own))] if len(names) > len(own) else []
        shown = queues() if any(kind == Mentioned.QUEUE for kind, _ in named) else ()
        rest = [(kind, name) for kind, name in named if kind not in _NOUNS]
        texts += [name if kind == Mentioned.QUEUE and name in shown else ANOTHERS for kind, name in rest]
        return ", ".join(texts)

    return render_lists(text, words)


def _as_pod(kind: str, name: str, pod_of: Callable[[str], PodName | None] | None) -> tuple[str, str]:
    if kind != Mentioned.REQUEST or pod_of is None:
        return kind, name
    pod = pod_of(name)
    return Mentioned.POD, pod.text if pod is not None else "/"


def _named(noun: str, name: str) -> str:
    namespace, _, rest = name.partition("/")
    if noun == "pod":
        return name
    return f"{noun} {name}" if rest else f"several {noun}s of {namespace}"


def _counted(noun: str, count: int) -> str:
    return f"1 {noun} of another namespace" if count == 1 else f"{count} {noun}s of other namespaces"
