"""Validation of the driver parameters in a ResourceClaim or ResourceClaimTemplate when it is created. Pure.

The check only makes errors visible earlier. The node agent checks the same parameters again when it prepares the
allocated claim. An error found by admission is returned to the user who creates the claim; an error found by the agent
becomes an event of a pod that already waits for its devices.
"""

from __future__ import annotations

import msgspec

from calabash.adapters.kube.objects.claims import ResourceClaimSpec, ResourceClaimTemplateSpec
from calabash.adapters.kube.objects.meta import KubeStruct
from calabash.kubernetes.admission.mutate import NOTHING, Mutation
from calabash.kubernetes.admission.review import AdmissionQuestion
from calabash.kubernetes.admission.scope import NamespaceTerms
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.kubernetes.claims.parameters import read_opaque
from calabash.model.errors import CalabashError


class _Claim(KubeStruct, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class _Template(KubeStruct, frozen=True):
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


# Created at import: msgspec crashes when two threads create the first decoder of a type at the same time.
_CLAIMS = msgspec.json.Decoder(_Claim)
_TEMPLATES = msgspec.json.Decoder(_Template)
_KINDS = msgspec.json.Decoder(_Kind)


def answer_claims(question: AdmissionQuestion, namespace: NamespaceTerms, settings: AdmissionSettings) -> Mutation:
    """Check the parameters of a claim; return an empty mutation, because claims are never changed.

    Raises:
        CalabashError: the claim is denied.
    """
    del namespace, settings
    if question.operation == "CREATE" and not question.sub_resource:
        for config in _spec(question.object).devices.config:
            if config.opaque is not None and config.opaque.driver == DRIVER:
                read_opaque(config.opaque)
    return NOTHING


def _spec(raw: msgspec.Raw) -> ResourceClaimSpec:
    try:
        if _KINDS.decode(raw).kind == "ResourceClaimTemplate":
            return _TEMPLATES.decode(raw).spec.spec
        return _CLAIMS.decode(raw).spec
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CalabashError(
            f"the claim cannot be read: {error}", hint="write it in the format of resource.k8s.io/v1"
        ) from error
