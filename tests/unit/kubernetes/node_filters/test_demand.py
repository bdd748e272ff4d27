"""Tests of the requests and host ports of a pod, against a plain model of its phases."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.node_filters.demand import Demand, HostPort, capacity, pod_demand
from calabash.kubernetes.node_filters.wire import WirePod, converted
from calabash.kubernetes.objects.quantity import parse_quantity
from calabash.model.errors import CalabashError

RESOURCES = ("cpu", "memory", "ephemeral-storage", "example.com/widget")
AMOUNTS = {
    "cpu": ["0", "1m", "0.1m", "250m", "333300u", "1", "1.5"],
    "memory": ["0", "1", "0.5", "100Mi", "128e6", "1Gi", "100000500m"],
    "ephemeral-storage": ["1Gi", "100M"],
    "example.com/widget": ["0", "1", "3"],
}


def demand_of(spec: dict[str, Any], status: dict[str, Any] | None = None, *, with_status: bool = False) -> Demand:
    tree = {"metadata": {"name": "p"}, "spec": spec, "status": status or {}}
    return pod_demand(converted(tree, WirePod, "pod"), with_status=with_status)


def amounts(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, int]:
    return dict(demand_of(spec, status, with_status=status is not None).amounts)


def asking(name: str = "c", restart: str | None = None, **requests: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "resources": {"requests": requests}}
    return found if restart is None else {**found, "restartPolicy": restart}


requests = st.fixed_dictionaries({}, optional={name: st.sampled_from(AMOUNTS[name]) for name in RESOURCES})
containers = st.lists(st.builds(lambda r: {"name": "c", "resources": {"requests": r}}, requests), max_size=3)
inits = st.lists(
    st.builds(
        lambda r, sidecar: (
            {"name": "i", "resources": {"requests": r}} | ({"restartPolicy": "Always"} if sidecar else {})
        ),
        requests,
        st.booleans(),
    ),
    max_size=5,
)


def exact(container: dict[str, Any], resource: str) -> Fraction:
    return parse_quantity(container["resources"]["requests"].get(resource, "0"), what=resource)


@given(containers, inits, requests)
def test_demand_is_the_largest_phase_of_the_pod_plus_its_overhead(
    main: list[dict[str, Any]], early: list[dict[str, Any]], overhead: dict[str, str]
) -> None:
    found = amounts({"containers": main, "initContainers": early, "overhead": overhead})
    for resource in RESOURCES:
        phases = []
        for i, container in enumerate(early):  # one phase for each init container, with the sidecars that run then
            running = [c for c in early[:i] if "restartPolicy" in c]
            phases.append(sum(exact(c, resource) for c in (*running, container)))
        phases.append(sum(exact(c, resource) for c in (*main, *(c for c in early if "restartPolicy" in c))))
        total = max(phases) + parse_quantity(overhead.get(resource, "0"), what=resource)
        expected = math.ceil(total * (1000 if resource == "cpu" else 1))
        assert found.get(resource, 0) == expected


def test_sidecars_after_an_init_container_do_not_count_for_it() -> None:
    early = [asking("a", "Always", cpu="1"), asking("b", cpu="5"), asking("c", "Always", cpu="2")]
    assert amounts({"containers": [asking(cpu="1")], "initContainers": early}) == {"cpu": 6000}
    assert amounts({"containers": [asking(cpu="4")], "initContainers": early}) == {"cpu": 7000}


def test_amounts_of_the_whole_pod_replace_those_of_its_containers_but_not_the_overhead() -> None:
    spec = {
        "containers": [asking(cpu="1", memory="1Gi", **{"ephemeral-storage": "1Gi"})],
        "resources": {"requests": {"cpu": "3", "hugepages-2Mi": "4Mi", "ephemeral-storage": "9Gi"}},
        "overhead": {"cpu": "250m"},
    }
    expected = {"cpu": 3250, "memory": 1 << 30, "ephemeral-storage": 1 << 30, "hugepages-2Mi": 4 << 20}
    assert amounts(spec) == expected


def test_fractions_are_rounded_up_once_for_the_sum() -> None:
    spec = {"containers": [asking("a", cpu="0.4m", memory="0.5"), asking("b", cpu="0.4m", memory="0.5")]}
    assert amounts(spec) == {"cpu": 1, "memory": 1}
    assert capacity({"cpu": "1000100u", "memory": "1500m"}) == {"cpu": 1001, "memory": 2}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("Deferred", {"cpu": 3000, "memory": 200}), ("Infeasible", {"cpu": 2000, "memory": 200})],
)
def test_resized_pod_counts_the_largest_amounts_unless_the_new_ones_were_refused(
    reason: str, expected: dict[str, int]
) -> None:
    status = {
        "conditions": [{"type": "PodResizePending", "reason": reason}],
        "containerStatuses": [
            {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "200"}}, "allocatedResources": {"cpu": "2"}}
        ],
    }
    spec = {"containers": [asking(cpu="3", memory="100")]}
    assert amounts(spec, status) == expected
    assert dict(demand_of(spec, status).amounts) == {"cpu": 3000, "memory": 100}


def test_status_of_the_whole_pod_counts_for_the_amounts_that_its_spec_has() -> None:
    spec = {"containers": [asking(memory="5")], "resources": {"requests": {"cpu": "1"}}}
    status = {"resources": {"requests": {"cpu": "2", "memory": "100"}}, "allocatedResources": {"cpu": "1500m"}}
    assert amounts(spec, status) == {"cpu": 2000, "memory": 5}


def test_ports_of_init_containers_do_not_count_and_those_of_sidecars_do() -> None:
    def with_port(container: dict[str, Any], **port: Any) -> dict[str, Any]:
        return {**container, "ports": [port]}

    early = [with_port(asking("a"), hostPort=1), with_port(asking("b", "Always"), hostPort=2, hostIP="10.0.0.1")]
    main = [with_port(asking("c"), hostPort=3, protocol="UDP"), with_port(asking("d"), containerPort=4)]
    spec = {"containers": main, "initContainers": early}
    sidecar, udp = HostPort("10.0.0.1", "TCP", 2), HostPort("0.0.0.0", "UDP", 3)
    assert demand_of(spec).ports == (sidecar, udp)
    assert demand_of({**spec, "hostNetwork": True}).ports == (sidecar, udp, HostPort("0.0.0.0", "TCP", 4))


@pytest.mark.parametrize("amount", ["-1", "abc", "", "1" * 65, "9223372036854775808", "1e99", "1 ", "0x10"])
def test_invalid_amount_is_refused(amount: str) -> None:
    with pytest.raises(CalabashError):
        demand_of({"containers": [asking(cpu=amount)]})
    with pytest.raises(CalabashError):
        capacity({"cpu": amount})


def test_sum_beyond_64_bits_is_exact() -> None:
    most = str((1 << 63) - 1)
    assert amounts({"containers": [asking(memory=most), asking(memory=most)]}) == {"memory": (1 << 64) - 2}
