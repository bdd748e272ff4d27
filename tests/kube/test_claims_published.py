"""Tests of the ResourceSlices of a node on a real API server and scheduler: no card is allocated in two modes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.charts import need_helm, render
from tests.kube.cluster import Cluster
from tests.unit.kubernetes.claims.claims_world import card

from calabash.adapters.kube import KubeClient, load_client
from calabash.adapters.kube.objects.claims import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE, AllocatedDevice
from calabash.adapters.kube.objects.core import NAMESPACE, NODE, POD
from calabash.kubernetes.claims.allocated import claim_plan
from calabash.kubernetes.claims.slice_publisher import SlicePublisher
from calabash.kubernetes.claims.slices import ServerFeatures, SliceFacts, slices_of
from calabash.model.device import Health, NodeName
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot

WAIT_S = 120.0
SPACE = "published"
FACTS = SliceFacts(driver_version="570.86.10")
TEN_GIB = {"memory": "10Gi", "cores": "30"}
PROFILE = 'device.attributes["calabash.dev"].profile == "1g.10gb"'


def until(check: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end, f"not in {WAIT_S} s: {what}"
        time.sleep(0.05)


class Published:
    """A fake node with one H100, the publisher of its ResourceSlices, and pods with claims on the node.

    The device classes are those of the chart with the prefix ``t-``, because other tests share the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.kube: KubeClient = load_client(cluster.kubeconfig)
        (self.node,) = cluster.fake_nodes(1, {}, prefix="claims")
        self.publisher = SlicePublisher(self.kube, self.node)
        watched = {"resource.kubernetes.io/admin-access": "true"}
        self.kube.create(NAMESPACE, {"metadata": {"name": SPACE, "labels": watched}})
        accounts = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"
        until(lambda: cluster.api.exists(accounts), "an account for pods")
        rendered = render({"claims": {"nvidiaClasses": True}})
        self.classes = [f"t-{c['metadata']['name']}" for c in rendered if c["kind"] == "DeviceClass"]
        for made in (c for c in rendered if c["kind"] == "DeviceClass"):
            name = f"t-{made['metadata']['name']}"
            self.kube.create(DEVICE_CLASS, {"metadata": {"name": name}, "spec": made["spec"]})

    def snapshot(self, health: Health = Health.HEALTHY, pinned: str = "") -> NodeSnapshot:
        state = DeviceSnapshot(device=card(health=health, pinned=pinned), mode=None, held=())
        return NodeSnapshot(
            node=NodeName(self.node), devices=(state,), allocations=(), membership="kernel", slots="tmpfs"
        )

    def publish(self, health: Health = Health.HEALTHY, pinned: str = "") -> None:
        until(lambda: self.publisher.publish(self.snapshot(health, pinned), FACTS), "slices")

    def ask(self, name: str, of: str, amounts: Mapping[str, str] | None = None, selector: str = "") -> None:
        """Create a pod, and a claim of the same name for one device.

        Args:
            name: name of the pod and of the claim.
            of: name of the device class, without its prefix.
            amounts: requested amounts of the device's capacity.
            selector: CEL selector of the request; "" for none.
        """
        exactly: dict[str, Any] = {"deviceClassName": f"t-{of}"}
        if amounts:
            exactly["capacity"] = {"requests": dict(amounts)}
        if selector:
            exactly["selectors"] = [{"cel": {"expression": selector}}]
        requests = [{"name": "gpu", "exactly": exactly}]
        self.kube.create(
            RESOURCE_CLAIM, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}, SPACE
        )
        container = {"name": "main", "image": "none.invalid/none", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "automountServiceAccountToken": False,
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [container],
        }
        self.kube.create(POD, {"metadata": {"name": name}, "spec": spec}, SPACE)

    def remove(self, *names: str) -> None:
        """Delete pods and their claims, those that wait for devices first.

        If the others were deleted first, the scheduler would allocate their devices to the waiting claims. Such an
        allocation can fail because its claim is deleted, and kube-scheduler then does not retry the pods that it had
        refused in the meantime. They would wait until any claim or slice changes, or for five minutes.
        """
        for name in sorted(names, key=lambda name: self.given(name) is not None):
            self.kube.delete(POD, name, SPACE, grace_s=0)
            self.kube.delete(RESOURCE_CLAIM, name, SPACE)
        until(lambda: not any(self.kube.get(RESOURCE_CLAIM, name, SPACE) for name in names), "claims gone")

    def given(self, name: str) -> AllocatedDevice | None:
        claim = self.kube.get(RESOURCE_CLAIM, name, SPACE)
        allocation = claim.status.allocation if claim is not None else None
        return allocation.devices.results[0] if allocation is not None else None

    def refused(self, name: str) -> bool:
        """Return True if the scheduler has tried to schedule the pod and found no devices for its claim."""
        pod = self.kube.get(POD, name, SPACE)
        return pod is not None and any(c.reason == "Unschedulable" for c in pod.status.conditions)

    def bound(self, name: str) -> bool:
        """Return True if the scheduler has bound the pod, which it does some time after it has allocated the claim."""
        pod = self.kube.get(POD, name, SPACE)
        return pod is not None and pod.spec.node_name != ""

    def wait_given(self, *names: str) -> None:
        until(lambda: all(self.given(name) and self.bound(name) for name in names), f"{names} allocated")

    def wait_refused(self, *names: str) -> None:
        until(lambda: all(self.refused(name) for name in names), f"{names} looked at")
        assert not any(self.given(name) for name in names)


@pytest.fixture(scope="module")
def published(control_plane: Cluster) -> Iterator[Published]:
    need_helm()
    made = Published(control_plane)
    made.publish()
    yield made
    made.publisher.stop()
    made.publisher.withdraw()
    for name in made.classes:
        made.kube.delete(DEVICE_CLASS, name)
    made.kube.delete(NODE, made.node)
    made.kube.delete(NAMESPACE, SPACE)


def test_api_server_stores_everything_that_is_published(published: Published) -> None:
    have = published.kube.list(RESOURCE_SLICE, field_selector=f"spec.nodeName={published.node}").items
    assert published.publisher.degraded == ""
    wanted = slices_of(published.snapshot(), FACTS, ServerFeatures())
    by_name = sorted(have, key=lambda one: one.metadata.name)
    assert [one.spec.devices for one in by_name] == [spec.devices for spec in wanted]
    assert [one.spec.shared_counters for one in by_name] == [spec.shared_counters for spec in wanted]


def test_scheduler_allocates_no_card_in_two_modes_and_not_more_than_it_has(published: Published) -> None:
    published.ask("a", "vgpu.calabash.dev", TEN_GIB)
    published.wait_given("a")
    published.ask("whole", "calabash.dev")
    published.ask("part", "mig.calabash.dev", selector=PROFILE)
    published.ask("turn", "timeslice.calabash.dev")
    published.ask("much", "vgpu.calabash.dev", {"memory": "70Gi"})
    published.ask("fits", "vgpu.calabash.dev", {"memory": "60Gi"})
    published.wait_given("fits")
    published.wait_refused("whole", "part", "turn", "much")
    claim = published.kube.get(RESOURCE_CLAIM, "a", SPACE)
    assert claim is not None
    (part,) = claim_plan(claim, published.node, [card()]).slices
    assert (part.memory_mib, part.core_percent) == (10 * 1024, 30)
    published.remove("a", "fits", "much", "turn", "part")
    published.wait_given("whole")
    published.remove("whole")


def test_card_is_partitioned_into_as_many_instances_as_fit(published: Published) -> None:
    names = [f"mig-{i}" for i in range(8)]
    for name in names:
        published.ask(name, "mig.calabash.dev", selector=PROFILE)
    until(lambda: sum(published.bound(name) for name in names) == 7, "seven instances")
    assert sum(published.given(name) is not None for name in names) == 7
    until(lambda: sum(published.refused(name) for name in names) == 1, "the eighth looked at")
    published.ask("card", "calabash.dev")
    published.wait_refused("card")
    published.remove(*names, "card")


def test_unhealthy_card_is_not_allocated_until_it_is_healthy(published: Published) -> None:
    published.publish(Health.LOST)
    published.ask("ill", "calabash.dev")
    published.wait_refused("ill")
    published.publish()
    published.wait_given("ill")
    published.remove("ill")


def test_what_was_given_while_a_card_was_kept_in_one_mode_counts_when_it_is_not_any_more(published: Published) -> None:
    published.publish(pinned="vgpu")
    (only,) = published.kube.list(RESOURCE_SLICE, field_selector=f"spec.nodeName={published.node}").items
    assert not only.spec.shared_counters
    assert published.publisher.degraded == ""
    published.ask("a", "vgpu.calabash.dev", TEN_GIB)
    published.ask("whole", "calabash.dev")
    published.wait_given("a")
    published.wait_refused("whole")
    published.publish()
    published.ask("turn", "timeslice.calabash.dev")
    published.ask("b", "vgpu.calabash.dev", TEN_GIB)
    published.wait_given("b")
    published.wait_refused("whole", "turn")
    published.remove("a", "b", "turn")
    published.wait_given("whole")
    published.remove("whole")


def test_claims_for_nvidias_classes_are_answered_by_what_means_the_same(published: Published) -> None:
    published.ask(
        "theirs", "gpu.nvidia.com", selector='device.attributes["gpu.nvidia.com"].productName.contains("H100")'
    )
    published.wait_given("theirs")
    whole = published.given("theirs")
    assert whole is not None
    assert whole.device == "gpu-00000000"
    published.remove("theirs")
    published.ask("part", "mig.nvidia.com", selector='device.attributes["gpu.nvidia.com"].profile == "3g.40gb"')
    published.wait_given("part")
    published.remove("part")


def test_plan_of_a_brokered_claim_has_mode_brokered(published: Published) -> None:
    published.ask("brokered", "brokered.calabash.dev", TEN_GIB)
    published.wait_given("brokered")
    claim = published.kube.get(RESOURCE_CLAIM, "brokered", SPACE)
    assert claim is not None
    assert claim_plan(claim, published.node, [card()]).mode == "brokered"
    published.remove("brokered")


def examples() -> list[tuple[str, str]]:
    """Return the examples of the guide: the name of each pod, and the manifest with the pod and its other objects."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "use-resource-claims.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    pods = [next(o["metadata"]["name"] for o in yaml.safe_load_all(b) if o["kind"] == "Pod") for b in blocks]
    return list(zip(pods, blocks, strict=True))


@pytest.mark.parametrize(("pod", "manifest"), examples(), ids=[name for name, _ in examples()])
def test_what_the_guide_shows_is_allocated_and_read(
    published: Published, control_plane: Cluster, pod: str, manifest: str
) -> None:
    text = manifest.replace("deviceClassName: ", "deviceClassName: t-")
    control_plane.kubectl("apply", "--namespace=published", "-f", "-", text=text)
    try:
        until(lambda: (p := published.kube.get(POD, pod, SPACE)) is not None and p.spec.node_name != "", pod)
        (claim,) = published.kube.list(RESOURCE_CLAIM, SPACE).items
        assert len(claim_plan(claim, published.node, [card()]).slices) == 1
    finally:
        control_plane.kubectl("delete", "--namespace=published", "--force", "--grace-period=0", "-f", "-", text=text)
        until(lambda: not published.kube.list(RESOURCE_CLAIM, SPACE).items, "claims gone")
