"""Find the containers that have given device IDs.

The kubelet's checkpoint is written before it starts a container and is used first; otherwise its pod-resources API and the
recorded answers to Allocate.
"""

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
    """A container that has certain device IDs.

    Args:
        pod_uid: "" if only the name of the pod is known.
        pod: ``namespace/name``, "" if only the UID is known.
        names: CDI device names with which Allocate was answered.
    """

    pod_uid: str = ""
    pod: str = ""
    container: str
    names: tuple[str, ...]


class Owners:
    """The containers that have device IDs of one resource.

    Args:
        checkpoint: return the kubelet's entries; raises CalabashError if the format is unknown.
        pod_resources: return the answer of the pod-resources API, which does not list init containers.
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
        """Record the CDI name with which Allocate was answered."""
        key = frozenset(tokens)
        with self._lock:
            self._answers[key] = name
            self._answers.move_to_end(key)
            while len(self._answers) > ANSWERS_KEPT_MAX:
                self._answers.popitem(last=False)

    def claimants(self, tokens: Sequence[str]) -> tuple[Claimant, ...]:
        """Return all containers with exactly these device IDs, unordered: init containers pass theirs on to later ones."""
        key = frozenset(tokens)
        try:
            found = [e for e in self._checkpoint() if e.resource == self.resource and frozenset(e.device_ids) == key]
        except CalabashError as error:
            log.warning("cannot read the kubelet's checkpoint; using the pod-resources API", error=error.message)
            found = []
        claimants = [
            Claimant(pod_uid=e.pod_uid, container=e.container, names=names)
            for e in found
            if (names := tuple(n for full in e.cdi_names if (n := device_name(full)) is not None))
        ]
        return tuple(claimants) or self._by_pod_resources(key)

    def _by_pod_resources(self, key: Tokens) -> tuple[Claimant, ...]:
        """Return the containers in the pod-resources API with these device IDs, with the last recorded CDI name.

        The API names the last container that got the IDs, so the last answer belongs to it. Earlier answers were for init
        containers that passed the IDs on, or for earlier pods.
        """
        with self._lock:
            name = self._answers.get(key)
        if name is None:
            return ()
        return tuple(
            Claimant(pod=f"{o.namespace}/{o.pod}", container=o.container, names=(name,))
            for o in self._pod_resources()
            if o.resource == self.resource and frozenset(o.device_ids) == key
        )
