"""Tests of tenants as objects: both names of their queues, and invalid tenants."""

from __future__ import annotations

import pytest

from calabash.adapters.kube import ObjectMeta
from calabash.adapters.kube.objects.resources import KubeProject, KubeTenant, KubeTenantSpec
from calabash.kubernetes.objects.tenants import (
    NamespacePlace,
    projects_of,
    spec_body,
    spec_of,
    tenant_map,
    tenant_of,
    wanted_queues,
)
from calabash.kubernetes.server.tenancy import readable
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Project, Tenant
from calabash.platform.tenancy.directory import TenancyDirectory

SPEC = KubeTenantSpec(
    guarantee=4.0,
    limit=8.0,
    weight=2.0,
    budget="5000EUR",
    projects=(KubeProject(name="train", guarantee=3.0, limit=5.0),),
)
VISION = KubeTenant(metadata=ObjectMeta(name="vision"), spec=SPEC)


def test_an_object_and_the_tenant_that_it_is_say_the_same() -> None:
    assert spec_of(tenant_of(VISION), projects_of(VISION)) == SPEC
    assert spec_body(SPEC)["projects"] == [{"name": "train", "guarantee": 3.0, "weight": 1.0, "limit": 5.0}]
    assert spec_body(KubeTenantSpec())["limit"] is None, "a merge patch takes the limit away"


def test_a_tenants_queues_have_names_that_the_api_server_takes() -> None:
    queues = wanted_queues(tenant_of(VISION), projects_of(VISION))
    assert {name: (q.parent, q.deserved, q.limit) for name, q in queues.items()} == {
        "vision": ("", 4.0, 8.0),
        "vision.default": ("vision", 1.0, None),
        "vision.train": ("vision", 3.0, 5.0),
    }


def test_a_queue_is_counted_for_the_tenant_that_has_it_and_for_nobody_else() -> None:
    people = TenancyDirectory(
        tenants={"vision": Tenant(name="vision")},
        projects={("vision", "train"): Project(tenant="vision", name="train")},
    )
    found = tenant_map(people)
    assert found.place("vision.train") == NamespacePlace(tenant="vision", project="train", queue="vision/train")
    assert found.place("vision.default").project == "default"
    assert found.place("vision") == NamespacePlace(tenant="vision", project="", queue="vision")
    for other in ("vision.other", "visions", "default", ""):
        assert found.place(other) == NamespacePlace(queue=other)


@pytest.mark.parametrize("name", ["Vision", "a.b", "a/b", "default", "-a", "a" * 32, ""])
def test_names_that_cannot_be_queues_are_no_tenants(name: str) -> None:
    with pytest.raises(CalabashError) as refused:
        spec_of(Tenant(name=name), ())
    assert refused.value.reason is Reason.BAD_REQUEST


def test_a_tenant_that_cannot_be_read_or_is_being_deleted_is_none() -> None:
    going = KubeTenant(metadata=ObjectMeta(name="going", deletion_timestamp="2026-01-01T00:00:00Z"), spec=SPEC)
    broken = KubeTenant(metadata=ObjectMeta(name="broken"), spec=KubeTenantSpec(guarantee=2.0, limit=1.0))
    tenants, projects = readable([VISION, going, broken])
    assert [t.name for t in tenants] == ["vision"]
    assert [p.queue for p in projects] == ["vision/train"]
