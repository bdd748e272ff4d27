"""The fields of pods and nodes that the filters read. Other fields are ignored here; see ``known_fields``."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from calabash.adapters.kube.objects.core import LabelSelector, NodeSelectorTerm, Taint, Toleration
from calabash.kubernetes.objects.quantity import Written
from calabash.model.errors import CalabashError

T = TypeVar("T")
_ResourceName = Annotated[str, msgspec.Meta(max_length=512)]
Amounts = Annotated[dict[_ResourceName, Written], msgspec.Meta(max_length=256)]
_Labels = Annotated[dict[str, str], msgspec.Meta(max_length=4096)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class _Narrow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class WireMetadata(_Narrow, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: _Labels | None = None


class WireResources(_Narrow, frozen=True):
    requests: Amounts | None = None


class WirePort(_Narrow, frozen=True):
    host_port: _Port = 0
    container_port: _Port = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(name="hostIP", default="")


class WireRestartRule(_Narrow, frozen=True):
    action: str = ""


class WireContainer(_Narrow, frozen=True):
    name: str = ""
    ports: Annotated[list[WirePort], msgspec.Meta(max_length=4096)] | None = None
    resources: WireResources | None = None
    restart_policy: str | None = None
    restart_policy_rules: Annotated[list[WireRestartRule], msgspec.Meta(max_length=256)] | None = None

    @property
    def requests(self) -> Amounts:
        return (self.resources.requests if self.resources is not None else None) or {}

    @property
    def is_sidecar(self) -> bool:
        """Return True for an init container that runs until the pod ends."""
        return self.restart_policy == "Always"


class WireNodeSelector(_Narrow, frozen=True):
    node_selector_terms: Annotated[list[NodeSelectorTerm], msgspec.Meta(max_length=256)] | None = None


class WireNodeAffinity(_Narrow, frozen=True):
    required: WireNodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class WirePodTerm(_Narrow, frozen=True):
    label_selector: LabelSelector | None = None
    namespaces: Annotated[list[str], msgspec.Meta(max_length=1024)] | None = None
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""


class WirePodAffinity(_Narrow, frozen=True):
    required: Annotated[list[WirePodTerm], msgspec.Meta(max_length=256)] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class WireAffinity(_Narrow, frozen=True):
    node_affinity: WireNodeAffinity | None = None
    pod_anti_affinity: WirePodAffinity | None = None


class WireName(_Narrow, frozen=True):
    name: str = ""


_Names = Annotated[list[WireName], msgspec.Meta(max_length=256)]
_Containers = Annotated[list[WireContainer], msgspec.Meta(max_length=1024)]


class WireSpec(_Narrow, frozen=True):
    containers: _Containers | None = None
    init_containers: _Containers | None = None
    node_name: str = ""
    node_selector: _Labels | None = None
    affinity: WireAffinity | None = None
    tolerations: Annotated[list[Toleration], msgspec.Meta(max_length=1024)] | None = None
    overhead: Amounts | None = None
    resources: WireResources | None = None
    host_network: bool = False
    host_users: bool | None = None
    scheduling_gates: _Names | None = None
    resource_claims: _Names | None = None


class WireContainerStatus(_Narrow, frozen=True):
    name: str = ""
    resources: WireResources | None = None
    allocated_resources: Amounts | None = None


class WireCondition(_Narrow, frozen=True):
    type: str = ""
    reason: str = ""


_Statuses = Annotated[list[WireContainerStatus], msgspec.Meta(max_length=1024)]


class WireStatus(_Narrow, frozen=True):
    phase: str = ""
    conditions: Annotated[list[WireCondition], msgspec.Meta(max_length=1024)] | None = None
    container_statuses: _Statuses | None = None
    init_container_statuses: _Statuses | None = None
    resources: WireResources | None = None
    allocated_resources: Amounts | None = None
    node_allocatable_resource_claim_statuses: list[Any] | None = None


class WirePod(_Narrow, frozen=True):
    metadata: WireMetadata = WireMetadata()
    spec: WireSpec = WireSpec()
    status: WireStatus = WireStatus()


class WireNodeSpec(_Narrow, frozen=True):
    unschedulable: bool = False
    taints: Annotated[list[Taint], msgspec.Meta(max_length=1024)] | None = None


class WireNodeStatus(_Narrow, frozen=True):
    allocatable: Annotated[dict[_ResourceName, Written], msgspec.Meta(max_length=4096)] | None = None


class WireNode(_Narrow, frozen=True):
    metadata: WireMetadata = WireMetadata()
    spec: WireNodeSpec = WireNodeSpec()
    status: WireNodeStatus = WireNodeStatus()


def converted(tree: Any, type_: type[T], kind: str) -> T:
    """Return an object of the API server as its narrow type.

    ``kind``: ``pod`` or ``node``, for the error message.

    Raises:
        CalabashError: the tree has not the form of the type, or exceeds a limit.
    """
    try:
        return msgspec.convert(tree, type=type_)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CalabashError(f"the {kind} cannot be read: {error}", hint=f"see `kubectl explain {kind}`") from error
