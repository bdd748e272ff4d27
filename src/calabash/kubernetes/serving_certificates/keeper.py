"""Keep server certificates current and shared among replicas, in a Secret and in the webhook configurations.

Theory of operation. The Secret contains the authority, the bundle of authorities that API servers should trust, and the
server certificate. Any replica that finds the Secret missing, or a certificate in it due for replacement, writes the
Secret in the version that it read; if another replica wrote first, it reads the Secret again. An authority is replaced
in two steps, so that no server certificate is used whose authority is not trusted yet. First the new authority is added
to the bundle. Only after the time ``SETTLED`` it signs a new server certificate. Every ``refresh`` writes the bundle
into the webhook configurations before it returns a server certificate.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from calabash.adapters.kube import Kind, KubeClient, KubeStruct, ObjectMeta
from calabash.adapters.kube.objects.core import SECRET, Secret
from calabash.kubernetes.serving_certificates.authority import (
    KeyPair,
    belongs,
    due,
    make_authority,
    make_serving,
    serves,
    signed_by,
    split,
    valid,
)
from calabash.kubernetes.serving_certificates.settings import CertificateSettings
from calabash.model.errors import CalabashError, Reason

SETTLED = datetime.timedelta(minutes=1)
_TRIES = 8


class WebhookClient(KubeStruct, frozen=True):
    """The part of a webhook that says how API servers reach its server; ``ca_bundle`` is base64."""

    ca_bundle: str = ""


class WebhookEntry(KubeStruct, frozen=True):
    """One webhook of a webhook configuration."""

    name: str
    client_config: WebhookClient = WebhookClient()


class WebhookConfiguration(KubeStruct, frozen=True):
    """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration object."""

    metadata: ObjectMeta
    webhooks: tuple[WebhookEntry, ...] = ()


def _kind(name: str) -> Kind[WebhookConfiguration]:
    return Kind(
        api_version="admissionregistration.k8s.io/v1",
        name=name,
        plural=f"{name.lower()}s",
        namespaced=False,
        type=WebhookConfiguration,
    )


MUTATING, VALIDATING = _kind("MutatingWebhookConfiguration"), _kind("ValidatingWebhookConfiguration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The content of the Secret.

    Args:
        authority: the authority that signs server certificates.
        bundle: certificates of the authorities that API servers should trust, as PEM; ``authority`` is the first.
        serving: the server certificate.
        since: time at which ``authority`` was added to the bundle.
    """

    authority: KeyPair
    bundle: bytes
    serving: KeyPair
    since: datetime.datetime


class CertificateKeeper:
    """Creates and replaces the certificates of one server. Each replica has one; no replica is the leader.

    Args:
        client: client of the API server.
        settings: names of the objects, and validity of the certificates.
        names: host names of the server; empty for the names of its Kubernetes service.
        publish: called with the bundle (base64) that clients of the server should trust; None to write it into the
            webhook configurations.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: CertificateSettings,
        names: tuple[str, ...] = (),
        *,
        publish: Callable[[str], None] | None = None,
    ) -> None:
        self._client = client
        self._publish = publish or self._to_webhooks
        self._settings = settings
        service = f"{settings.service}.{settings.namespace}"
        self._names = names or (f"{service}.svc", f"{service}.svc.cluster.local", service, settings.service)

    def refresh(self, now: datetime.datetime) -> Material:
        """Create or replace certificates if it is time, publish the bundle, and return the current certificates.

        Raises:
            CalabashError: an object cannot be read or written.
        """
        material = self._agreed(now)
        bundle = base64.b64encode(material.bundle).decode()
        self._publish(bundle)
        return material

    def _to_webhooks(self, bundle: str) -> None:
        for kind in (MUTATING, VALIDATING):
            self._to_configuration(kind, bundle)

    def _agreed(self, now: datetime.datetime) -> Material:
        for _ in range(_TRIES):
            secret = self._client.get(SECRET, self._settings.secret, self._settings.namespace)
            found = _read(secret.data) if secret is not None else None
            wanted = self._renewed(found, now)
            if wanted == found and found is not None:
                return found
            try:
                self._write(secret, wanted)
            except CalabashError as error:
                if error.reason is not Reason.CONFLICT:
                    raise
                continue  # another replica was first
            return wanted
        raise CalabashError(
            f"secret {self._settings.namespace}/{self._settings.secret} was changed by others {_TRIES} times in a row",
            reason=Reason.CONFLICT,
            hint="see who writes it; replicas of admission agree after one or two",
        )

    def _renewed(self, found: Material | None, now: datetime.datetime) -> Material:
        settings = self._settings
        if found is None or not valid(found.authority.certificate, now):
            authority = make_authority(now, settings.authority_days)
            serving = make_serving(authority, self._names, now, settings.serving_days)
            return Material(authority=authority, bundle=authority.certificate, serving=serving, since=now)
        if due(found.authority.certificate, now):
            authority = make_authority(now, settings.authority_days)
            bundle = authority.certificate + found.authority.certificate
            return replace(found, authority=authority, bundle=bundle, since=now)
        current = found.authority.certificate
        ours, settled = signed_by(found.serving.certificate, current), now >= found.since + SETTLED
        stale = due(found.serving.certificate, now) or not serves(found.serving.certificate, self._names) or not ours
        if stale and (settled or not self._still_good(found, now)):
            serving = make_serving(found.authority, self._names, now, settings.serving_days)
            return replace(found, serving=serving)
        return found

    def _still_good(self, found: Material, now: datetime.datetime) -> bool:
        certificate = found.serving.certificate
        trusted = any(signed_by(certificate, authority) for authority in split(found.bundle))
        return trusted and valid(certificate, now) and serves(certificate, self._names)

    def _write(self, secret: Secret | None, material: Material) -> None:
        settings = self._settings
        data = _written(material)
        if secret is None:
            metadata = {"name": settings.secret, "namespace": settings.namespace}
            body: dict[str, Any] = {"metadata": metadata, "type": "Opaque", "data": data}
            self._client.create(SECRET, body, settings.namespace)
        else:
            version = {"resourceVersion": secret.metadata.resource_version}
            self._client.patch(SECRET, settings.secret, settings.namespace, body={"metadata": version, "data": data})

    def _to_configuration(self, kind: Kind[WebhookConfiguration], bundle: str) -> None:
        name = self._settings.configuration
        found = self._client.get(kind, name)
        if found is None:
            return  # not installed yet: the next refresh updates it
        patch: list[Mapping[str, Any]] = []
        for i, webhook in enumerate(found.webhooks):
            if webhook.client_config.ca_bundle != bundle:
                patch.append({"op": "test", "path": f"/webhooks/{i}/name", "value": webhook.name})
                patch.append({"op": "add", "path": f"/webhooks/{i}/clientConfig/caBundle", "value": bundle})
        if patch:
            self._client.patch(kind, name, body=patch, style="json")


_KEYS = ("authority.crt", "authority.key", "ca.crt", "tls.crt", "tls.key", "since")


def _written(material: Material) -> dict[str, str]:
    values = (
        material.authority.certificate,
        material.authority.key,
        material.bundle,
        material.serving.certificate,
        material.serving.key,
        material.since.isoformat().encode(),
    )
    return {key: base64.b64encode(value).decode() for key, value in zip(_KEYS, values, strict=True)}


def _read(data: Mapping[str, str]) -> Material | None:
    """Decode the content of the Secret; return None if it is incomplete or inconsistent.

    The caller then creates new certificates.
    """
    try:
        authority, authority_key, bundle, serving, key, since = (
            base64.b64decode(data[name], validate=True) for name in _KEYS
        )
        material = Material(
            authority=KeyPair(certificate=authority, key=authority_key),
            bundle=bundle,
            serving=KeyPair(certificate=serving, key=key),
            since=datetime.datetime.fromisoformat(since.decode()),
        )
        known = split(bundle)
    except (KeyError, ValueError, binascii.Error):
        return None
    if not belongs(material.authority) or not belongs(material.serving) or not known or known[0] != authority:
        return None
    return material if material.since.tzinfo is not None else None
