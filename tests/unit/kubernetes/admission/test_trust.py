"""Tests of certificates: replicas agree on one authority, serve no certificate before it is trusted, and report expiry."""

from __future__ import annotations

import base64
import datetime
import threading
from typing import Any

import pytest

from calabash.adapters.kube.objects.core import SECRET
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import mutating, validating
from calabash.kubernetes.serving_certificates.authority import (
    belongs,
    due,
    make_authority,
    make_serving,
    serves,
    signed_by,
    split,
)
from calabash.kubernetes.serving_certificates.keeper import MUTATING, SETTLED, VALIDATING, CertificateKeeper, Material
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube

SETTINGS = AdmissionSettings()
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def kube() -> MemoryKube:
    client = MemoryKube()
    client.create(MUTATING, mutating(SETTINGS))
    client.create(VALIDATING, validating(SETTINGS))
    return client


def bundles(client: MemoryKube) -> set[bytes]:
    found = [client.get(kind, SETTINGS.configuration) for kind in (MUTATING, VALIDATING)]
    return {base64.b64decode(w.client_config.ca_bundle) for c in found if c is not None for w in c.webhooks}


def test_a_serving_certificate_is_for_its_names_and_signed_by_its_authority_alone() -> None:
    authority, other = make_authority(NOW, 100), make_authority(NOW, 100)
    pair = make_serving(authority, ("a.svc", "127.0.0.1"), NOW, 90)
    assert signed_by(pair.certificate, authority.certificate)
    assert not signed_by(pair.certificate, other.certificate)
    assert serves(pair.certificate, ("127.0.0.1",))
    assert not serves(pair.certificate, ("a.svc", "b.svc"))
    assert belongs(pair)
    assert [due(pair.certificate, NOW + n * DAY) for n in (-1, 0, 59, 61)] == [True, False, False, True]
    assert split(authority.certificate + other.certificate) == [authority.certificate, other.certificate]


def test_the_first_replica_makes_the_certificates_and_tells_the_configurations(kube: MemoryKube) -> None:
    material = CertificateKeeper(kube, SETTINGS.certificates).refresh(NOW)
    assert bundles(kube) == {material.bundle}
    assert signed_by(material.serving.certificate, material.authority.certificate)
    assert serves(material.serving.certificate, ("calabash-admission.calabash-system.svc",))
    again = CertificateKeeper(kube, SETTINGS.certificates).refresh(NOW + DAY)
    assert again == material


def test_replicas_that_start_at_once_agree_on_one_authority(kube: MemoryKube) -> None:
    found: list[Material] = []
    threads = [
        threading.Thread(target=lambda: found.append(CertificateKeeper(kube, SETTINGS.certificates).refresh(NOW)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len({(m.bundle, m.serving.certificate) for m in found}) == 1
    assert bundles(kube) == {found[0].bundle}


def test_a_serving_certificate_is_replaced_before_it_ends_under_the_same_authority(kube: MemoryKube) -> None:
    keeper = CertificateKeeper(kube, SETTINGS.certificates)
    first = keeper.refresh(NOW)
    assert keeper.refresh(NOW + 59 * DAY) == first
    second = keeper.refresh(NOW + 61 * DAY)
    assert second.serving != first.serving
    assert second.bundle == first.bundle


def test_a_new_authority_is_trusted_before_anything_that_it_signed_is_served(kube: MemoryKube) -> None:
    settings = AdmissionSettings(serving_days=800)
    keeper = CertificateKeeper(kube, settings.certificates)
    first = keeper.refresh(NOW)
    late = NOW + 1300 * DAY
    last_serving = keeper.refresh(NOW + 700 * DAY)
    joined = keeper.refresh(late)
    assert joined.authority != first.authority
    assert split(joined.bundle) == [joined.authority.certificate, first.authority.certificate]
    assert joined.serving == last_serving.serving
    assert bundles(kube) == {joined.bundle}
    assert keeper.refresh(late + SETTLED / 2) == joined
    settled = keeper.refresh(late + SETTLED)
    assert signed_by(settled.serving.certificate, joined.authority.certificate)
    assert settled.bundle == joined.bundle


@pytest.mark.parametrize(
    "damage",
    [
        {"tls.key": base64.b64encode(b"junk").decode()},
        {"authority.key": "%%%"},
        {"ca.crt": ""},
        {"since": base64.b64encode(b"2026-01-01").decode()},
        {"tls.crt": None},
    ],
)
def test_a_secret_that_is_not_whole_is_made_anew(kube: MemoryKube, damage: dict[str, Any]) -> None:
    keeper = CertificateKeeper(kube, SETTINGS.certificates)
    first = keeper.refresh(NOW)
    kube.patch(SECRET, SETTINGS.secret, SETTINGS.namespace, body={"data": damage})
    second = keeper.refresh(NOW)
    assert second.authority != first.authority
    assert bundles(kube) == {second.bundle}


def test_a_certificate_that_is_for_other_names_is_replaced(kube: MemoryKube) -> None:
    CertificateKeeper(kube, SETTINGS.certificates, ("old.svc",)).refresh(NOW)
    second = CertificateKeeper(kube, SETTINGS.certificates, ("new.svc",)).refresh(NOW)
    assert serves(second.serving.certificate, ("new.svc",))


def test_configurations_that_are_not_there_yet_are_told_later() -> None:
    client = MemoryKube()
    keeper = CertificateKeeper(client, SETTINGS.certificates)
    material = keeper.refresh(NOW)
    client.create(MUTATING, mutating(SETTINGS))
    assert keeper.refresh(NOW) == material
    assert bundles(client) == {material.bundle}


def test_an_api_server_that_is_down_is_an_error_for_people(kube: MemoryKube) -> None:
    kube.faults.down = True
    with pytest.raises(CalabashError) as refused:
        CertificateKeeper(kube, SETTINGS.certificates).refresh(NOW)
    assert refused.value.reason is Reason.API_DOWN
