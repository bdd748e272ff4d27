"""Queues of tenants, and the limits of a tenant's requests: priorities, modes, models and run time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement
from calabash.model.tenancy import Member, Principal, Project, Role, Tenant
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.queues import queue_of, tenant_queues
from calabash.pool.queues import _specs
from calabash.pool.requests.run_times import run_times
from calabash.sched.queues.hierarchy import Hierarchy

ANN = Principal(user="ann", uid=1001, roles=(Member(user="ann", role=Role.MEMBER, tenant="vision"),))


def people(*projects: Project, guarantee: float = 4.0) -> TenancyDirectory:
    return TenancyDirectory(
        tenants={"vision": Tenant(name="vision", guarantee=guarantee)},
        projects={(p.tenant, p.name): p for p in projects},
    )


@given(parts=st.lists(st.integers(0, 1000), max_size=5), left=st.integers(0, 1000))
def test_the_queues_below_a_tenant_are_guaranteed_exactly_what_the_tenant_is(parts: list[int], left: int) -> None:
    projects = [Project(tenant="vision", name=f"p{i}", guarantee=g / 1000) for i, g in enumerate(parts)]
    found = tenant_queues(people(*projects, guarantee=(sum(parts) + left) / 1000), ())
    below = [q for q in found.values() if q.parent == "vision"]
    assert sum(round(1000 * q.deserved) for q in below) == round(1000 * found["vision"].deserved)
    form = Hierarchy.build(_specs(found.values()))
    assert set(form.leaves) == {q.name for q in below} | {"default"}, "a tenant's own queue never has requests"


def test_a_queue_that_an_administrator_has_made_is_not_replaced_by_a_tenants() -> None:
    assert tenant_queues(people(), {"vision"}) == {}
    assert queue_of(people(), {"vision"}, ANN, "vision", queue="default", project="") == ("vision", "")


@pytest.mark.parametrize(
    ("queue", "project", "expected"),
    [
        ("", "", ("vision/default", "default")),
        ("default", "", ("vision/default", "default")),
        ("vision", "", ("vision/default", "default")),
        ("default", "train", ("vision/train", "train")),
        ("vision/train", "", ("vision/train", "train")),
        ("prod", "", ("prod", "")),
    ],
)
def test_a_request_is_in_the_queue_of_its_tenant_and_project(
    queue: str, project: str, expected: tuple[str, str]
) -> None:
    known = people(Project(tenant="vision", name="train"))
    assert queue_of(known, (), ANN, "vision", queue=queue, project=project) == expected


def test_member_of_one_project_requests_there_by_default_and_unknown_projects_are_refused() -> None:
    known = people(Project(tenant="vision", name="train"))
    bob = Principal(user="bob", roles=(Member(user="bob", role=Role.MEMBER, tenant="vision", project="train"),))
    assert queue_of(known, (), bob, "vision", queue="default", project="") == ("vision/train", "train")
    for queue, project in (("vision/none", ""), ("", "none")):
        with pytest.raises(CalabashError, match="no project none"):
            queue_of(known, (), ANN, "vision", queue=queue, project=project)
    with pytest.raises(CalabashError, match="ann has no projects"):
        queue_of(known, (), ANN, "ann", queue="", project="train")


def _record(tenant: str, granted_at: float) -> AllocationRecord:
    return AllocationRecord(
        id=AllocationId(f"of-{tenant}"),
        state=AllocationState.RUNNING,
        request=GpuRequest(tenant=tenant),
        placement=Placement(node=NodeName("here"), mode=ModeName("vgpu"), slices=()),
        granted_at=granted_at,
    )


def test_run_times_are_bound_by_tenant_and_told_of_near_their_end() -> None:
    tenants = {"vision": Tenant(name="vision", run_s_max=100.0), "speech": Tenant(name="speech")}
    records = [_record("vision", 1000.0), _record("speech", 0.0), _record("ann", 0.0)]
    (early,) = run_times(records, tenants, now_s=1085.0)
    (near,) = run_times(records, tenants, now_s=1095.0)
    (over,) = run_times(records, tenants, now_s=1100.0)
    assert (early.id, early.near, near.near) == ("of-vision", False, True)
    assert over.left_s <= 0 < near.left_s
