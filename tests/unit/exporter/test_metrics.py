"""Tests of the metrics of a scrape, made from replies of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from calabash.adapters.exposition import Family
from calabash.adapters.pool.client import ApiClient
from calabash.api import replies
from calabash.api.counters import NO_COUNTERS, GpuTimeView, PoolCounters, QueueWaitView
from calabash.api.networks import NetworkConditionView, NetworkObjectView, NetworkStatusView
from calabash.api.tenancy import QuotaList, QuotaView
from calabash.exporter import catalogue, native
from calabash.exporter.catalogue import CATALOGUE, MetricKind
from calabash.exporter.page import COMPATIBLE, MetricsPage
from calabash.exporter.reading import PoolReading, Reader
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind
from calabash.model.network_status import ConditionKind

STATUS = replies.Status(
    version="1", pid=1, home="/pool", node="n1", sim="lab", db="", started_at=5.0, uptime_s=1, devices=1, allocations=1,
    pending=0, driver="nvidia 580", arbiter_pid=2, membership="kernel", serves="every user",
)  # fmt: skip


def device(index: int = 0, **changes: Any) -> replies.DeviceView:
    base = replies.DeviceView(
        uuid=f"GPU-{index}", index=index, vendor="nvidia", model="A100", compute_capability="8.0", memory_mib=1000,
        memory_used_mib=300, memory_allocated_mib=500, memory_free_mib=500, core_allocated_percent=40,
        utilization_percent=20, temperature_c=50, power_w=99.5, health="healthy", cause="", mode="vgpu", pinned="",
        replicas=4, interval="", spill_mib=0, allocations=["a1"], unmanaged_processes=[],
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def part(device: str = "GPU-0", **changes: Any) -> replies.SliceUseView:
    base = replies.SliceUseView(
        device=device, device_index=0, memory_mib=500, core_percent=40, memory_used_mib=300, core_used_percent=20.0,
        denied=2, throttled_s=1.5,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def allocation(name: str = "a1", **changes: Any) -> replies.AllocationView:
    base = replies.AllocationView(
        id=name, tenant="vision", queue="prod", user="ann", uid=7, command=["secret-program"], mode="vgpu",
        policy="burst", priority=0, gang="", state="running", reason="", explanation="", created_at=1.0, started_at=2.0,
        ended_at=None, pids=[1], slices=[part()],
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


QUEUE = replies.QueueView(
    name="prod", parent="", guarantee=2, deserved=2, limit=None, weight=1, allocated=0.4, pending=1, users=[], groups=[]
)


def quota(project: str = "", **changes: Any) -> QuotaView:
    base = QuotaView(
        tenant="vision", project=project, queue="vision", guarantee=2, limit=None, allocated=2.5, borrowed=0.5, pending=1,
        budget="" if project else "5000EUR", spent="" if project else "12.50EUR",
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


COUNTERS = PoolCounters(
    tenants=[GpuTimeView(tenant="vision", project="", allocated_s=90.0, used_s=30.0, idle_s=45.0)],
    projects=[GpuTimeView(tenant="vision", project="train", allocated_s=60.0, used_s=20.0, idle_s=30.0)],
    wait_bounds_s=[1.0, 60.0],
    waits=[QueueWaitView(queue="prod", outcome="granted", counts=[2, 1, 4], sum_s=901.5)],
)


def reading(**changes: Any) -> PoolReading:
    waits = allocation("w1", state="pending", slices=[], reason="no_room")
    given: dict[str, Any] = {
        "status": STATUS,
        "devices": [device()],
        "allocations": [allocation(), waits],
        "queues": [QUEUE],
        "quota": [quota(), quota("train")],
        "counters": COUNTERS,
    }
    return PoolReading(**(given | {"events": {("granted", ""): 3}} | changes))


def samples(families: Iterator[Family]) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {f.name: [(dict(zip(f.labels, row, strict=True)), value) for row, value in f.rows] for f in families}


def test_every_metric_of_the_catalogue_is_told_with_its_labels_and_no_other() -> None:
    found = samples(native.families(reading()))
    by_page = {catalogue.UP.name, catalogue.READ_SECONDS.name}
    assert found.keys() | by_page == {spec.name for spec in CATALOGUE}
    for spec in CATALOGUE:
        for labels, _ in found.get(spec.name, []):
            assert tuple(labels) == spec.labels


def test_names_end_in_their_unit_and_counters_in_total() -> None:
    for spec in CATALOGUE:
        name = spec.name.removesuffix("_total")
        assert spec.unit in ("", name.rsplit("_", 1)[-1]), spec
        assert (spec.kind is MetricKind.COUNTER) == spec.name.endswith("_total")
    assert len({spec.name for spec in CATALOGUE}) == len(CATALOGUE)


def test_figures_are_in_base_units() -> None:
    found = samples(native.families(reading()))
    assert found["calabash_device_memory_used_bytes"][0][1] == 300 * 1024 * 1024
    assert found["calabash_device_core_allocated_ratio"][0][1] == 0.4
    assert found["calabash_slice_core_used_ratio"][0][1] == 0.2
    assert found["calabash_slice_throttled_seconds_total"][0][1] == 1.5
    assert found["calabash_queue_limit_devices"][0][1] == float("inf")
    assert found["calabash_requests_waiting"] == [({"node": "n1", "queue": "prod", "reason": "no_room"}, 1)]


def test_tenants_are_told_with_their_projects_and_money_with_its_currency() -> None:
    found = samples(native.families(reading()))
    assert found["calabash_tenant_borrowed_devices"] == [
        ({"node": "n1", "tenant": "vision"}, 0.5),
    ]
    assert found["calabash_project_borrowed_devices"] == [
        ({"node": "n1", "tenant": "vision", "project": "train"}, 0.5),
    ]
    assert found["calabash_tenant_limit_devices"][0][1] == float("inf")
    assert found["calabash_tenant_spent"] == [({"node": "n1", "tenant": "vision", "currency": "EUR"}, 12.5)]
    unbudgeted = samples(native.families(reading(quota=[quota(budget="", spent="")])))
    assert unbudgeted["calabash_tenant_budget"] == unbudgeted["calabash_tenant_spent"] == []


def test_a_tenant_with_a_thousand_projects_has_series_of_fifty_and_says_how_many_there_are() -> None:
    many = [quota(), *(quota(f"p{i:04}") for i in range(1000)), quota("own", tenant="speech")]
    found = samples(native.families(reading(quota=many)))
    assert len(found["calabash_tenant_allocated_devices"]) == 1
    assert len(found["calabash_project_allocated_devices"]) == 50 + 1
    assert [value for _, value in found["calabash_tenant_projects"]] == [1000]


def test_several_instances_of_one_card_in_one_allocation_are_one_series_with_their_sum() -> None:
    two = allocation(slices=[part(profile="1g.5gb"), part(profile="2g.10gb"), part("GPU-1")])
    found = samples(native.families(reading(allocations=[two])))
    limits = {labels["device_uuid"]: value for labels, value in found["calabash_slice_memory_limit_bytes"]}
    assert limits == {"GPU-0": 1000 << 20, "GPU-1": 500 << 20}
    assert {labels["mig_profile"] for labels, _ in found["calabash_slice_info"]} == {"1g.5gb,2g.10gb", ""}


def test_longest_wait_of_a_queue_is_that_of_its_own_oldest_request_and_not_of_a_child_queue() -> None:
    parent = msgspec.structs.replace(QUEUE, name="all", pending=3)
    leaf, idle = msgspec.structs.replace(QUEUE, parent="all"), msgspec.structs.replace(QUEUE, name="idle", parent="all")
    waits = [allocation(f"w{at}", state="pending", slices=[], created_at=float(at)) for at in (90, 40, 70)]
    status = msgspec.structs.replace(STATUS, started_at=10.0, uptime_s=90.0)
    found = samples(
        native.families(reading(status=status, queues=[parent, leaf, idle], allocations=[allocation(), *waits]))
    )
    ages = {labels["queue"]: value for labels, value in found["calabash_queue_longest_wait_seconds"]}
    assert ages == {"all": 0, "prod": 60, "idle": 0}


def test_sums_of_queue_series_count_a_device_once_at_every_depth_of_the_tree() -> None:
    def queue(name: str, parent: str, guarantee: float, allocated: float, pending: float) -> replies.QueueView:
        return msgspec.structs.replace(
            QUEUE, name=name, parent=parent, guarantee=guarantee, allocated=allocated, pending=pending
        )

    queues = [
        queue("all/a/x", "all/a", 1, 0.3, 1),
        queue("all/a/y", "all/a", 2, 0.1, 0),
        queue("all", "", 8, 2.4, 7),
        queue("all/a", "all", 2, 1.4, 3),  # its children are guaranteed more
        queue("all/b", "all", 0, 0.7, 4),
        queue("lone", "", 1, 0.25, 2),
        queue("seen", "unseen", 0.5, 0.5, 0.5),
    ]
    found = {
        name: {labels["queue"]: value for labels, value in rows}
        for name, rows in samples(native.families(reading(queues=queues))).items()
        if name.startswith("calabash_queue_") and name != "calabash_queue_info"
    }
    allocated, pending = found["calabash_queue_allocated_devices"], found["calabash_queue_pending_devices"]
    assert allocated == {
        "all/a/x": 0.3, "all/a/y": 0.1, "all": 0.3, "all/a": 1.0, "all/b": 0.7, "lone": 0.25, "seen": 0.5,
    }  # fmt: skip
    assert sum(allocated.values()) == pytest.approx(2.4 + 0.25 + 0.5)
    assert sum(pending.values()) == pytest.approx(7 + 2 + 0.5)
    assert found["calabash_queue_deserved_devices"]["all/a"] == 0
    assert sum(found["calabash_queue_deserved_devices"].values()) == pytest.approx(8 + 1 + 0.5)
    roots = {
        labels["queue"]: labels["root"]
        for labels, _ in samples(native.families(reading(queues=queues)))["calabash_queue_info"]
    }
    assert roots == {name: "all" if name.startswith("all") else name for name in allocated}


def test_waiting_times_are_a_cumulative_histogram_of_every_leaf_queue() -> None:
    buckets = {
        (labels["queue"], labels["outcome"], labels["le"]): value
        for labels, value in samples_named(MetricsPage(Reader(Pool())), "calabash_queue_wait_seconds_bucket")
    }
    granted = {le: buckets["prod", "granted", le] for le in ("1.0", "60.0", "+Inf")}
    assert granted == {"1.0": 2, "60.0": 3, "+Inf": 7}
    assert {value for key, value in buckets.items() if key[1] == "not_granted"} == {0}
    assert samples_named(MetricsPage(Reader(Pool())), "calabash_queue_wait_seconds_sum")[0][1] == 901.5
    assert samples_named(MetricsPage(Reader(Pool())), "calabash_queue_wait_seconds_count")[0][1] == 7
    parent = msgspec.structs.replace(QUEUE, name="all")
    leaf = msgspec.structs.replace(QUEUE, name="all/leaf", parent="all")
    gone = QueueWaitView(queue="deleted", outcome="granted", counts=[1, 0, 0], sum_s=0.5)
    counters = msgspec.structs.replace(COUNTERS, waits=[gone])
    families = {f.name: f for f in native.families(reading(queues=[parent, leaf], counters=counters))}
    shown = {h.labels[1] for h in families["calabash_queue_wait_seconds"].histograms}
    assert shown == {"all/leaf"}


def test_gpu_time_of_tenants_and_of_projects_are_counters_of_their_own() -> None:
    idle = quota(tenant="speech")  # nothing yet: it begins at 0, so that its first use is an increase
    found = samples(native.families(reading(quota=[quota(), quota("train"), quota("test"), idle])))
    assert found["calabash_tenant_gpu_seconds_total"] == [
        ({"node": "n1", "tenant": "speech"}, 0.0),
        ({"node": "n1", "tenant": "vision"}, 90.0),
    ]
    assert found["calabash_tenant_gpu_idle_seconds_total"][1][1] == 45.0
    used = {labels["project"]: value for labels, value in found["calabash_project_gpu_used_seconds_total"]}
    assert used == {"train": 20.0, "test": 0.0}


@pytest.mark.parametrize("reason", [Reason.NOT_FOUND, Reason.UNSUPPORTED, Reason.NOT_PERMITTED])
def test_a_pool_without_counters_is_told_without_them(reason: Reason) -> None:
    page = MetricsPage(Reader(Pool(uncounted=reason)))
    assert samples_named(page, "calabash_up") == [({}, 1.0)]
    for name in ("calabash_queue_wait_seconds_count", "calabash_tenant_gpu_seconds_total"):
        assert samples_named(page, name) == []
    assert samples(native.families(reading(counters=NO_COUNTERS)))["calabash_project_gpu_seconds_total"] == []


def test_no_command_line_is_told() -> None:
    names = [native.families, *COMPATIBLE.values()]
    for families in names:
        for rows in samples(families(reading())).values():
            assert not any("secret-program" in value for labels, _ in rows for value in labels.values())


@pytest.mark.parametrize("name", sorted(COMPATIBLE))
def test_names_of_others_tell_the_same_figures(name: str) -> None:
    found = samples(COMPATIBLE[name](reading()))
    used = {"dcgm": ("DCGM_FI_DEV_FB_USED", 300.0), "hami": ("hami_vgpu_memory_used_bytes", 300.0 * (1 << 20))}[name]
    assert [value for _, value in found[used[0]]] == [used[1]]


class Pool(ApiClient):
    """A pool's API with these answers; ``events`` is its list of events."""

    def __init__(self, *, down: bool = False, uncounted: Reason | None = None) -> None:
        self.down = down
        self.uncounted = uncounted
        self.events: list[dict[str, Any]] = []
        self.allocations = [allocation()]
        self.asked = 0

    def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        assert method == "GET"
        if path == "/v1/networks/objects?kind=vpc":
            return {"items": []}
        if path == "/v1/allocations":
            return {"items": msgspec.to_builtins(self.allocations)}
        self.asked += 1
        if self.down:
            raise CalabashError("no pool answers", reason=Reason.POOL_DOWN)
        if path == "/v1/counters" and self.uncounted is not None:
            raise CalabashError("no counters", reason=self.uncounted)
        if path.startswith("/v1/events"):
            after = int(path.partition("after=")[2].partition("&")[0])
            return {"items": [e for e in self.events if e["id"] > after][:1000]}
        found: dict[str, Callable[[], Any]] = {
            "/v1/status": lambda: STATUS,
            "/v1/devices": lambda: replies.DeviceList(items=[device()]),
            "/v1/queues": lambda: replies.QueueList(items=[QUEUE]),
            "/v1/counters": lambda: COUNTERS,
            "/v1/quota": lambda: QuotaList(items=[quota()]),
        }
        return msgspec.to_builtins(found[path]())

    def happens(self, kind: str, count: int = 1) -> None:
        last = len(self.events)
        base = {"at": 1.0, "kind": kind, "reason": "", "allocation": "", "device": "", "message": ""}
        self.events += [{**base, "id": last + n + 1} for n in range(count)]


def samples_named(page: MetricsPage, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(page.text().decode())
    return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]


def events(page: MetricsPage) -> dict[str, float]:
    return {labels["kind"]: value for labels, value in samples_named(page, "calabash_events_total")}


def test_a_pool_that_does_not_answer_is_told_as_down_and_nothing_else_is() -> None:
    lines = [
        line for line in MetricsPage(Reader(Pool(down=True))).text().decode().splitlines() if not line.startswith("#")
    ]
    assert lines == ["calabash_up 0"]


def test_events_count_from_the_first_scrape_on_and_none_twice() -> None:
    pool, now = Pool(), [0.0]
    page = MetricsPage(Reader(pool), clock=lambda: now[0])
    pool.happens("granted", 1500)
    assert events(page) == {"granted": 0.0}
    pool.happens("granted", 2100)
    pool.happens("xid")
    now[0] += 10
    assert events(page) == {"granted": 2100.0, "xid": 1.0}
    now[0] += 10
    assert events(page) == {"granted": 2100.0, "xid": 1.0}


def test_scrapes_that_come_together_ask_the_pool_once() -> None:
    pool, now = Pool(), [0.0]
    page = MetricsPage(Reader(pool), clock=lambda: now[0])
    page.text()
    asked = pool.asked
    now[0] += 0.5
    page.text()
    assert pool.asked == asked
    now[0] += 0.6
    page.text()
    assert pool.asked > asked


@given(st.text(max_size=30), st.text(max_size=30))
def test_whatever_names_are_made_of_the_page_can_be_read_back(tenant: str, gang: str) -> None:
    pool = Pool()
    pool.allocations = [allocation(tenant=tenant, gang=gang)]
    page = MetricsPage(Reader(pool), compatible=COMPATIBLE)
    assert [labels["tenant"] for labels, _ in samples_named(page, "calabash_slice_memory_limit_bytes")] == [tenant]
    assert [labels["gang"] for labels, _ in samples_named(page, "calabash_slice_info")] == [gang]


def vpc(name: str, reason: str, *, holds: bool) -> NetworkObjectView:
    condition = NetworkConditionView(kind=ConditionKind.READY, holds=holds, reason=reason)
    status = NetworkStatusView(conditions=[condition])
    return NetworkObjectView(kind=NetworkKind.VPC, name=name, tenant="", generation=1, spec={}, status=status)


def test_vpcs_are_counted_by_the_part_of_ovn_that_does_not_answer_and_not_at_all_where_there_are_none() -> None:
    name = catalogue.NETWORK_AFFECTED.name
    assert samples(native.families(reading()))[name] == []
    vpcs = [
        vpc("red", "northd_down", holds=False),
        vpc("blue", "host_silent", holds=True),  # a gateway host
        vpc("green", "active", holds=True),
    ]
    found = {labels["reason"]: count for labels, count in samples(native.families(reading(vpcs=vpcs)))[name]}
    assert found == {"northbound_down": 0, "southbound_down": 0, "northd_down": 1, "host_silent": 1}
