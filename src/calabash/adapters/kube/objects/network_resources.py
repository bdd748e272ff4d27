"""Objects of tenant networks in the API server: one kind for each noun of ``model.network``, whose fields stand in ``spec`` as
they do in YAML. ``red/a/web1`` is called ``red.a.web1`` there. Their schemas are made of the nouns (``tools.network_crds``)."""

from __future__ import annotations

from typing import Any

import msgspec

from calabash.adapters.kube.objects.core import Condition
from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta
from calabash.model.network import KINDS, NetworkKind

_PLURALS = {"DnsRecord": "dnsrecords", "QosPolicy": "qospolicies"}


class KubeNetworkStatus(KubeStruct, frozen=True):
    """What the server made of an object: ``completed`` are all its fields with what was allocated, as text."""

    observed_generation: int = 0
    completed: dict[str, Any] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class KubeNetworkObject(KubeStruct, frozen=True):
    """An object of a network; cluster scoped."""

    metadata: ObjectMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: KubeNetworkStatus = KubeNetworkStatus()


NETWORK_KINDS: dict[NetworkKind, Kind[KubeNetworkObject]] = {
    kind: Kind(
        api_version="calabash.dev/v1alpha1",
        name=noun.__name__,
        plural=_PLURALS.get(noun.__name__, f"{noun.__name__.lower()}s"),
        namespaced=False,
        type=KubeNetworkObject,
    )
    for noun, kind in KINDS.items()
}


def network_name(name: str) -> str:
    """The path of an object by its name in the API server."""
    return name.replace(".", "/")


def resource_name(path: str) -> str:
    """The name in the API server of an object by its path."""
    return path.replace("/", ".")
