"""As much of a pod as its request can depend on. Everything else of it is ignored, so that new fields do no harm."""

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
    """Who made the pod."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class AskingMetadata(_Narrow, frozen=True):
    """Names and what is attached to them."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: _Map | None = None
    annotations: _Map | None = None
    owner_references: list[AskingOwner] | None = None


class AskedResources(_Narrow, frozen=True):
    """Amounts as they were written; names of all kinds."""

    limits: _Amounts | None = None
    requests: _Amounts | None = None


class AskingContainer(_Narrow, frozen=True):
    """A container of any kind."""

    name: str = ""
    resources: AskedResources | None = None
    restart_policy: str | None = None


class HoldingGate(_Narrow, frozen=True):
    """What holds a pod back from schedulers."""

    name: str = ""


class PodToleration(_Narrow, frozen=True):
    """A taint that the pod accepts."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class GroupReference(_Narrow, frozen=True):
    """The PodGroup of ``scheduling.k8s.io`` that the pod belongs to."""

    pod_group_name: str | None = None


class AskingClaim(_Narrow, frozen=True):
    """A claim as the pod calls it: one that is there, or one that is made for the pod of a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


_Claims = Annotated[list[AskingClaim], msgspec.Meta(max_length=64)]
_Containers = Annotated[list[AskingContainer], msgspec.Meta(max_length=256)]


class AskingSpec(_Narrow, frozen=True):
    """The part of the specification that a request can depend on."""

    containers: _Containers = []
    init_containers: _Containers | None = None
    ephemeral_containers: _Containers | None = None
    scheduler_name: str = ""
    scheduling_gates: list[HoldingGate] | None = None
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
        """None is the same as empty."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        """None is the same as empty."""
        return self.metadata.labels or {}


# Made at import, also for those who convert: msgspec crashes when two threads make the first decoder of a type at once.
_DECODER = msgspec.json.Decoder(AskingPod)


def read_pod(raw: bytes | msgspec.Raw) -> AskingPod:
    """A pod in JSON. Raises CalabashError(BAD_REQUEST)."""
    try:
        return _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CalabashError(f"the pod cannot be read: {error}", hint="see `kubectl explain pod`") from error


def pod_of(tree: Any) -> AskingPod:
    """A pod from dictionaries and lists, as YAML gives them. Raises CalabashError(BAD_REQUEST)."""
    try:
        return msgspec.convert(tree, type=AskingPod)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CalabashError(f"the pod cannot be read: {error}", hint="see `kubectl explain pod`") from error
