"""The fields of a pod that its request can depend on. Other fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from calabash.kubernetes.objects.quantity import Written
from calabash.model.errors import CalabashError

_Map = Annotated[dict[str, str], msgspec.Meta(max_length=4096)]
_Amounts = Annotated[dict[str, Written], msgspec.Meta(max_length=256)]


class _Narrow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class AskingOwner(_Narrow, frozen=True):
    """An owner of the pod."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class AskingMetadata(_Narrow, frozen=True):
    """Metadata of the pod. Before the API server has named the pod, only ``generate_name`` may be set."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: _Map | None = None
    annotations: _Map | None = None
    owner_references: list[AskingOwner] | None = None


class AskedResources(_Narrow, frozen=True):
    """Limits and requests of a container: amounts by resource name, as the user wrote them (``"8Gi"``)."""

    limits: _Amounts | None = None
    requests: _Amounts | None = None


class AskingContainer(_Narrow, frozen=True):
    """A container, init container or ephemeral container."""

    name: str = ""
    resources: AskedResources | None = None
    restart_policy: str | None = None


class PodSchedulingGate(_Narrow, frozen=True):
    """A scheduling gate of the pod."""

    name: str = ""


class PodToleration(_Narrow, frozen=True):
    """A toleration of the pod: the taints of nodes that it accepts."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class GroupReference(_Narrow, frozen=True):
    """The PodGroup of ``scheduling.k8s.io`` that the pod belongs to."""

    pod_group_name: str | None = None


class AskingClaim(_Narrow, frozen=True):
    """A claim of the pod: an existing one, or one that is created from a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


_Claims = Annotated[list[AskingClaim], msgspec.Meta(max_length=64)]
_Containers = Annotated[list[AskingContainer], msgspec.Meta(max_length=256)]


class AskingSpec(_Narrow, frozen=True):
    """The fields of the pod specification that a request can depend on."""

    containers: _Containers = []
    init_containers: _Containers | None = None
    ephemeral_containers: _Containers | None = None
    scheduler_name: str = ""
    scheduling_gates: list[PodSchedulingGate] | None = None
    scheduling_group: GroupReference | None = None
    tolerations: list[PodToleration] | None = None
    node_name: str = ""
    priority: int | None = None
    resource_claims: _Claims | None = None


class AskingPod(_Narrow, frozen=True):
    """A pod that may ask for devices."""

    metadata: AskingMetadata = AskingMetadata()
    spec: AskingSpec = AskingSpec()

    @property
    def annotations(self) -> dict[str, str]:
        """Return the annotations; empty if the pod has none."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels; empty if the pod has none."""
        return self.metadata.labels or {}

    @property
    def controller(self) -> AskingOwner | None:
        """Return the owner that is the pod's controller, or None."""
        return next((owner for owner in self.metadata.owner_references or [] if owner.controller), None)


# Created at import, also for ``pod_of``: msgspec crashes when two threads create the first decoder of a type at the
# same time.
_DECODER = msgspec.json.Decoder(AskingPod)


def read_pod(raw: bytes | msgspec.Raw) -> AskingPod:
    """Decode a pod from JSON.

    Raises:
        CalabashError: BAD_REQUEST if the JSON is not a pod.
    """
    try:
        return _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CalabashError(f"the pod cannot be read: {error}", hint="see `kubectl explain pod`") from error


def pod_of(tree: Any) -> AskingPod:
    """Decode a pod from dictionaries and lists, as YAML gives them.

    Raises:
        CalabashError: BAD_REQUEST if the tree is not a pod.
    """
    try:
        return msgspec.convert(tree, type=AskingPod)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CalabashError(f"the pod cannot be read: {error}", hint="see `kubectl explain pod`") from error
