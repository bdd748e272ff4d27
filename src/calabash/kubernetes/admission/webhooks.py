"""Webhook configurations of admission: the objects that API servers send to it, and the failure policies. Pure.

API servers send only pods that ask for devices, have the product's annotations, or may be members without devices of
their owner's gang (``matchConditions``), so that an admission server that is down delays no other pod. The conditions
cannot see which driver's devices a claim asks for, so all pods with claims are sent. While no admission server answers,
the creation of such a pod fails and its controller tries again; in namespaces with the label ``calabash.dev/admission:
optional`` the pod is admitted unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from calabash.kubernetes.admission.service import CLAIMS, MUTATE, VALIDATE
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.validate import PROTECTED
from calabash.kubernetes.claims.device_names import CLASS_RESOURCE, DRIVER
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.gangs.owner import read_owners
from calabash.kubernetes.gangs.table import read_kinds, role_marks, table_with
from calabash.kubernetes.objects import names

TIMEOUT_S = 5
EXTENDED_MARK = "@EXTENDED@"  # placeholder for a regular expression that the chart writes
# Placeholders in lists, for the kinds that an administrator adds, and for their labels of roles.
KINDS_MARK, ROLES_MARK = "@KINDS@", "@ROLES@"


def mutating(settings: AdmissionSettings, *, ca_bundle: str = "", url: str = "") -> dict[str, Any]:
    """Return the MutatingWebhookConfiguration that sends new pods to ``/mutate``.

    Args:
        ca_bundle: base64 of the authority of the server's certificate; "" if another program fills it in.
        url: address of a server that has no Kubernetes service; "" to use the service of the settings.
    """
    exempt = [settings.namespace, *settings.exempt_namespaces]
    selected = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": exempt}
    common = {
        "clientConfig": _client(settings, MUTATE, ca_bundle, url),
        "rules": [_rule(["CREATE"], ["pods"])],
        "matchConditions": [{"name": "asks-for-devices", "expression": _asks(settings)}],
        "reinvocationPolicy": "IfNeeded",
        **_always(),
    }
    closed = {"key": names.ADMISSION, "operator": "NotIn", "values": ["off", "optional"]}
    opened = {"key": names.ADMISSION, "operator": "In", "values": ["optional"]}
    webhooks = [
        {
            "name": f"{word}.{names.GROUP}",
            "failurePolicy": policy,
            "namespaceSelector": {"matchExpressions": [selected, mode]},
            **common,
        }
        for word, policy, mode in (("pods", "Fail", closed), ("optional", "Ignore", opened))
    ]
    return _configuration("MutatingWebhookConfiguration", settings, webhooks)


def validating(settings: AdmissionSettings, *, ca_bundle: str = "", url: str = "") -> dict[str, Any]:
    """Return the ValidatingWebhookConfiguration: one webhook protects the annotations of pods, one checks claims.

    ``ca_bundle`` and ``url`` are as in ``mutating``.
    """
    webhook = {
        "name": f"plans.{names.GROUP}",
        "failurePolicy": "Fail",
        "clientConfig": _client(settings, VALIDATE, ca_bundle, url),
        "rules": [
            _rule(["CREATE", "UPDATE"], ["pods"]),
            _rule(["UPDATE"], ["pods/status", "pods/ephemeralcontainers", "pods/resize"]),
        ],
        "matchConditions": [{"name": "concerns-the-product", "expression": _concerns(settings)}],
        **_always(),
    }
    claims = {
        "name": f"claims.{names.GROUP}",
        "failurePolicy": "Ignore",  # agents read the same parameters again
        "clientConfig": _client(settings, CLAIMS, ca_bundle, url),
        "rules": [_rule(["CREATE"], ["resourceclaims", "resourceclaimtemplates"], "resource.k8s.io")],
        "matchConditions": [{"name": "says-something-to-the-driver", "expression": _says()}],
        **_always(),
    }
    return _configuration("ValidatingWebhookConfiguration", settings, [webhook, claims])


def _always() -> dict[str, Any]:
    return {
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_S,
        "matchPolicy": "Equivalent",
    }


def _rule(operations: list[str], resources: list[str], group: str = "") -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": resources,
        "scope": "Namespaced",
    }


def _client(settings: AdmissionSettings, path: str, ca_bundle: str, url: str) -> dict[str, Any]:
    service = {"namespace": settings.namespace, "name": settings.service, "path": path, "port": 443}
    reached: dict[str, Any] = {"url": f"{url}{path}"} if url else {"service": service}
    return {**reached, "caBundle": ca_bundle} if ca_bundle else reached


def _configuration(kind: str, settings: AdmissionSettings, webhooks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": settings.configuration},
        "webhooks": webhooks,
    }


def _pattern(extended: tuple[str, ...] = ()) -> str:
    """Return a regular expression that matches the resource names of all dialects and the names in ``extended``.

    The syntax is RE2 because API servers evaluate it in a CEL expression.
    """
    exact = sorted({re.escape(n) for d in DIALECTS for n in d.resources if not (d.prefix and n.startswith(d.prefix))})
    exact += [name if name == EXTENDED_MARK else re.escape(name) for name in extended]
    begins = sorted({re.escape(d.prefix) + ".*" for d in DIALECTS if d.prefix})
    return "^(" + "|".join([*exact, *begins]).replace("\\-", "-") + ")$"


def _amounts(containers: str, pattern: str) -> str:
    asked = f"exists(name, name.matches(r'{pattern}'))"
    return f"{containers}.exists(c, c.?resources.?limits.orValue({{}}).{asked} || c.?resources.?requests.orValue({{}}).{asked})"


def _asks(settings: AdmissionSettings) -> str:
    containers = "(object.spec.containers + object.spec.?initContainers.orValue([]))"
    asked_by = [name for dialect in DIALECTS for name in dialect.asked_by]
    said = " || ".join(f"'{name}' in object.metadata.?annotations.orValue({{}})" for name in (*asked_by, *PROTECTED))
    pattern = _pattern(settings.extended_resources).removesuffix(")$") + f"|{re.escape(CLASS_RESOURCE)}.*)$"
    claims = "object.spec.?resourceClaims.orValue([]).size() > 0"
    return f"{_amounts(containers, pattern)} || {said} || {claims} || ({_is_member(settings)})"


def _is_member(settings: AdmissionSettings) -> str:
    """Return the condition of pods without devices that may be members of their owner's gang.

    Such a pod has a controller of a kind that leads to a gang owner, and a label or annotation that names its role. Pods
    of Deployments, and of Jobs and StatefulSets that nobody else created, have no such label.
    """
    added = [owner for owner in read_owners(settings.gang_owners) if owner.named_by is None]
    known = sorted({kind.kind for kind in read_kinds(table_with()).values()})
    kinds = _listed((*known, *(owner.kind for owner in added)), settings, KINDS_MARK)
    named = (*role_marks(table_with()), *(name for owner in added for name in owner.role_labels))
    roles = _listed(named, settings, ROLES_MARK)
    owned = f"object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.kind in {kinds})"
    labels, annotations = "object.metadata.?labels.orValue({})", "object.metadata.?annotations.orValue({})"
    return f"{owned} && {roles}.exists(name, name in {labels} || name in {annotations})"


def _listed(words: Iterable[str], settings: AdmissionSettings, mark: str) -> str:
    """Return a list in CEL, with a placeholder at the end if the chart is written (``tools/chart.py``)."""
    more = (mark,) if EXTENDED_MARK in settings.extended_resources else ()
    return "[" + ", ".join(f"'{word}'" for word in (*words, *more)) + "]"


def _says() -> str:
    said = f".?config.orValue([]).exists(c, c.?opaque.?driver.orValue('') == '{DRIVER}')"
    return f"object.kind == 'ResourceClaimTemplate' ? object.spec.spec.devices{said} : object.spec.devices{said}"


def _concerns(settings: AdmissionSettings) -> str:
    now, before = "object.metadata.?annotations.orValue({})", "oldObject.metadata.?annotations.orValue({})"
    brought = " || ".join(f"'{name}' in {now}" for name in PROTECTED)
    changed = [f"{now}[?'{name}'].orValue('') != {before}[?'{name}'].orValue('')" for name in PROTECTED]
    gate = f".?schedulingGates.orValue([]).exists(g, g.name == '{names.PLAN_GATE}')"
    changed.append(f"oldObject.spec{gate} && !object.spec{gate}")
    trusted = ", ".join(f"'{user}'" for user in settings.trusted_users)
    foreign = f"!(request.userInfo.username in [{trusted}]) && ({' || '.join(f'({c})' for c in changed)})"
    ephemeral = _amounts("object.spec.?ephemeralContainers.orValue([])", _pattern())
    return f"request.operation == 'CREATE' ? ({brought}) : (({foreign}) || {ephemeral})"
