"""Types of tenant network objects in the API server: one kind for each noun of ``model.network``.

Fields are in ``spec``, named as in YAML. The object ``red/a/web1`` is named ``red.a.web1`` in the API server. The
schemas are generated from the nouns (``tools.network_crds``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from calabash.adapters.kube.objects.core import Condition
from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta
from calabash.model.network import KINDS, NetworkKind

_PLURALS = {"DnsRecord": "dnsrecords", "QosPolicy": "qospolicies"}


class KubeNetworkStatus(KubeStruct, frozen=True):
    """Status of a network object; ``completed`` has all fields with allocated values, as text."""

    observed_generation: int = 0
    completed: dict[str, Any] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class KubeNetworkObject(KubeStruct, frozen=True):
    """Object of a network; cluster scoped."""

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
    """Return the path of a network object from its name in the API server."""
    return name.replace(".", "/")
