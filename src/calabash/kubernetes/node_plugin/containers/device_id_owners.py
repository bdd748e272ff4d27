"""Whose tokens they are: by the kubelet's checkpoint, which is written before it starts a container, else by pod-resources
and what this process remembers of its own answers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from calabash.adapters.kubelet.protocol import CheckpointEntry, TokenOwner
from calabash.kubernetes.node_plugin.containers.device_ids import device_name
from calabash.kubernetes.objects.names import GPUS
from calabash.model.errors import CalabashError

ANSWERS_KEPT_MAX = 4096

log = structlog.get_logger(__name__)

Tokens = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A container that holds certain tokens.

    Args:
        pod_uid: "" where only the name of the pod is known.
        pod: ``namespace/name``, "" where only the UID is known.
        names: CDI device names that it was answered with.
    """

    pod_uid: str = ""
    pod: str = ""
    container: str
    names: tuple[str, ...]


class Owners:
    """Who holds which tokens of one resource.

    Args:
        checkpoint: the kubelet's entries; raises CalabashError when its form is not known.
        pod_resources: the kubelet's answer; does not know init containers.
    """

    def __init__(
        self,
        checkpoint: Callable[[], Iterable[CheckpointEntry]],
        pod_resources: Callable[[], Iterable[TokenOwner]],
        *,
        resource: str = GPUS,
    ) -> None:
        self.resource = resource
        self._checkpoint = checkpoint
        self._pod_resources = pod_resources
        self._answers: OrderedDict[Tokens, str] = OrderedDict()
        self._lock = threading.Lock()

    def answered(self, tokens: Sequence[str], name: str) -> None:
        """Remember what Allocate was answered with."""
        key = frozenset(tokens)
        with self._lock:
            self._answers[key] = name
            self._answers.move_to_end(key)
            while len(self._answers) > ANSWERS_KEPT_MAX:
                self._answers.popitem(last=False)

    def of(self, tokens: Sequence[str]) -> tuple[Claimant, ...]:
        """All containers with exactly these tokens, in no order: init containers pass theirs on to later ones."""
        key = frozenset(tokens)
        try:
            found = [e for e in self._checkpoint() if e.resource == self.resource and frozenset(e.device_ids) == key]
        except CalabashError as error:
            log.warning("the kubelet's checkpoint cannot be read; asking pod-resources", error=error.message)
            found = []
        claimants = [
            Claimant(pod_uid=e.pod_uid, container=e.container, names=names)
            for e in found
            if (names := tuple(n for full in e.cdi_names if (n := device_name(full)) is not None))
        ]
        return tuple(claimants) or self._by_pod_resources(key)

    def _by_pod_resources(self, key: Tokens) -> tuple[Claimant, ...]:
        """It names whoever got the tokens last, so the last answer is that container's: earlier ones were for init
        containers that passed the tokens on, or for pods before."""
        with self._lock:
            name = self._answers.get(key)
        if name is None:
            return ()
        return tuple(
            Claimant(pod=f"{o.namespace}/{o.pod}", container=o.container, names=(name,))
            for o in self._pod_resources()
            if o.resource == self.resource and frozenset(o.device_ids) == key
        )
