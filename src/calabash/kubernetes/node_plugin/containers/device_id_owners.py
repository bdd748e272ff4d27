"""Find the containers that have given device IDs.

There are two sources. The kubelet's checkpoint file is used first: the kubelet writes it before it starts a container.
If the checkpoint cannot be read or does not have the device IDs, the kubelet's pod-resources API is used together with
the CDI names with which this agent answered the kubelet's calls of ``Allocate``.
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
        pod_uid: UID of the pod; "" if only the name of the pod is known.
        pod: ``namespace/name`` of the pod; "" if only the UID is known.
        container: name of the container.
        names: CDI device names with which the kubelet's call of ``Allocate`` for the container was answered.
    """

    pod_uid: str = ""
    pod: str = ""
    container: str
    names: tuple[str, ...]


class Owners:
    """The containers that have device IDs of one resource.

    Args:
        checkpoint: returns the entries of the kubelet's checkpoint; raises CalabashError if its format is unknown.
        pod_resources: returns the answer of the pod-resources API, which does not list init containers.
        resource: name of the resource to which the device IDs belong.
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
        """Record the CDI name with which a call of ``Allocate`` for these device IDs was answered."""
        key = frozenset(tokens)
        with self._lock:
            self._answers[key] = name
            self._answers.move_to_end(key)
            while len(self._answers) > ANSWERS_KEPT_MAX:
                self._answers.popitem(last=False)

    def claimants(self, tokens: Sequence[str]) -> tuple[Claimant, ...]:
        """Return all containers that have exactly these device IDs, in no particular order.

        There can be several, because the kubelet gives the device IDs of a finished init container to a later container
        of the pod.
        """
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
        """Return the containers that have these device IDs according to the pod-resources API.

        The kubelet uses device IDs again, so several calls of ``Allocate`` may have been answered for them. The API
        lists only the last container that got the device IDs, so its CDI name is that of the last answer.
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
