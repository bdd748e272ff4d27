"""Redaction of conditions, events and error messages for the readers of one namespace.

Every user with rights in the namespace can read these texts, so pods, budgets and queues of other namespaces are
counted and not named. Texts mark the names in them (``model.mentions``); each mark is replaced here by what the reader
may see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from calabash.kubernetes.objects.pod_name import PodName
from calabash.model.mentions import ANOTHERS, Mentioned, mention, mentions, render_lists

NAMED_MAX = 3
_NOUNS = {Mentioned.POD: "pod", Mentioned.BUDGET: "disruption budget"}


def pod_mention(pod: PodName | None) -> str:
    """Return the mark of a pod; None stands for a pod that no longer exists."""
    return mention(Mentioned.POD, pod.text if pod is not None else "/")


def pod_mentions(pods: Iterable[PodName]) -> str:
    """Return the mark of several pods, sorted by name."""
    return mentions(Mentioned.POD, sorted(pod.text for pod in pods))


def budget_mention(namespace: str, name: str) -> str:
    """Return the mark of a disruption budget; an empty name stands for several budgets of the namespace."""
    return mention(Mentioned.BUDGET, f"{namespace}/{name}")


def for_namespace(
    text: str,
    namespace: str,
    *,
    queues: Callable[[], Collection[str]] = lambda: (),
    pod_of: Callable[[str], PodName | None] | None = None,
) -> str:
    """Return the text for the readers of a namespace.

    Args:
        queues: return the names of queues that the readers may see: their own and its ancestors.
        pod_of: return the pod of a request, by its UID; None if requests are not UIDs of pods.
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
