"""Tests of hostile claims of a user with the role ``edit`` in one namespace: each is refused or explained.

Admission, planner, kube-scheduler and the agent of a real node are involved; the node offers its devices to claims.
Pods of the user either are planned or bypass the planner. The latter belong to a DaemonSet in a namespace that is
exempt from admission, so that the agent is the first component that reads their claims.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml
from tests.kube.api import Json
from tests.kube.charts import need_helm, render
from tests.kube.cluster import Cluster
from tests.kube.containers import FILL, within
from tests.kube.gpu_node import CUDA, GpuNode, got_mib
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod

from calabash.model.units import MIB

GROUP = "/apis/resource.k8s.io/v1"
USER, PAST, VICTIM = "mallory", "mallory-past", "alice"
KIND = {"apiVersion": "calabash.dev/v1", "kind": "SliceConfig"}
WHOLE, SLICE = "calabash.dev", "vgpu.calabash.dev"
CARDS = 2
SLICE_MIB = 1024
FOREVER = "exec sleep 1000"
UNREADABLE = {
    "lists": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","a":' + "[" * 1200 + "]" * 1200 + "}",
    "objects": '{"a":' * 1200 + "1" + "}" * 1200,
    "surrogate": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","policy":"\\ud800"}',
    "number": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","spill":1e300}',
    "null-kind": '{"apiVersion":null,"kind":null}',
    "kind-is-an-object": '{"apiVersion":{"a":[1]},"kind":["SliceConfig"]}',
    "policy-is-a-list": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","policy":["fixed"]}',
    "isolation-is-a-number": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","isolation":3}',
    "isolation-of-another-class": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","isolation":"hardware"}',
    "spill-is-negative": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","spill":"-4Gi"}',
    "spill-is-too-large": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","spill":"9000000000Gi"}',
    "devices-of-others": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","devices":["GPU-1"],"uuid":"GPU-1"}',
    "amounts": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","memory":"64Gi","cores":100}',
    "long": '{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","policy":"' + "x" * 9000 + '"}',
}
UNCOUNTED: dict[str, tuple[Json, str]] = {
    "all-devices": ({"deviceClassName": SLICE, "allocationMode": "All"}, "say how many"),
    "many-devices": ({"deviceClassName": WHOLE, "count": (1 << 63) - 1}, "ask for 1 to 64 devices"),
    "no-mig-profile": ({"deviceClassName": "mig.calabash.dev"}, "names no MIG profile"),
    "looks-without-admin": ({"deviceClassName": "observed.calabash.dev"}, "adminAccess: true"),
    "one-byte": ({"deviceClassName": SLICE, "capacity": {"requests": {"memory": "1"}}}, "add the unit"),
    "huge-cores": (
        {"deviceClassName": SLICE, "capacity": {"requests": {"memory": "1Gi", "cores": "1000000"}}},
        "hint:",
    ),
    "part-of-a-core": ({"deviceClassName": SLICE, "capacity": {"requests": {"cores": "500m"}}}, "whole number"),
    "huge-memory": ({"deviceClassName": SLICE, "capacity": {"requests": {"memory": "7Ei"}}}, ""),
    "no-class": ({"deviceClassName": "of-nobody"}, "does not exist"),
}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    need(node=True)
    need_helm()
    with Cluster(lifecycle=True, users=USERS) as cluster:
        classes = [m for m in render({}) if m["kind"] == "DeviceClass"]
        cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(classes))
        scratch = tmp_path_factory.mktemp("hostile-claims")
        gpu_node = GpuNode(RealNode(cluster), scratch, gpus=f"{CARDS}xT4", words=["--allocation-api=claims"])
        with Product(gpu_node) as made:
            for name in (USER, PAST, VICTIM):
                made.namespace(name)
            cluster.kubectl("label", "namespace", PAST, "calabash.dev/admission=off")
            cluster.kubectl("create", "serviceaccount", USER, "-n", USER)
            account = f"--serviceaccount={USER}:{USER}"
            for name in (USER, PAST):
                cluster.kubectl("create", "rolebinding", USER, "--clusterrole=edit", account, "-n", name)
            cluster.wait_for(lambda: cluster.api.get(f"{GROUP}/resourceslices")["items"], "slices of the node")
            made.api.create(templates(VICTIM), {"metadata": {"name": "slice"}, "spec": {"spec": asking(sliced())}})
            yield made


@pytest.fixture(autouse=True)
def nothing_left(product: Product) -> Iterator[None]:
    yield
    kubectl = product.cluster.kubectl
    for namespace in (USER, PAST):
        kubectl("delete", "daemonsets", "--all", "-n", namespace)
    for namespace in (USER, PAST, VICTIM):
        kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
        kubectl("delete", "resourceclaims", "--all", "-n", namespace)
    product.cluster.wait_for(lambda: product.gpu_node.slots() == [], "the slots to be gone")


def templates(namespace: str) -> str:
    return f"{GROUP}/namespaces/{namespace}/resourceclaimtemplates"


def claims(namespace: str) -> str:
    return f"{GROUP}/namespaces/{namespace}/resourceclaims"


def sliced(memory_mib: int = SLICE_MIB, cores: int = 10, **more: Any) -> Json:
    amounts = {"memory": f"{memory_mib}Mi", "cores": str(cores)}
    return {"deviceClassName": SLICE, "capacity": {"requests": amounts}, **more}


def asking(*exactly: Json, **more: Any) -> Json:
    """Return the spec of a claim with these requests."""
    requests = [{"name": f"r{number}", "exactly": one} for number, one in enumerate(exactly)]
    return {"devices": {"requests": requests, **more}}


def as_user(product: Product, path: str, text: str) -> str:
    """Create an object as the hostile user; the text is sent to the API server unchanged."""
    account = f"--as=system:serviceaccount:{USER}:{USER}"
    return product.cluster.kubectl(account, "create", "--raw", path, "-f", "-", text=text)


def refusal(product: Product, path: str, text: str) -> str:
    """Create an object as the hostile user; return the error of the API server, or "" if the object was created."""
    try:
        as_user(product, path, text)
    except RuntimeError as error:
        return str(error)
    return ""


def claim(name: str, spec: Json) -> str:
    meta = {"name": name}
    return json.dumps({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": spec})


def claim_of_parameters(name: str, parameters: str, driver: str = "calabash.dev") -> str:
    config = {"config": [{"opaque": {"driver": driver, "parameters": {"stands": "here"}}}]}
    return claim(name, asking(sliced(), **config)).replace('{"stands": "here"}', parameters)


def claiming(name: str, script: str = FOREVER, **source: str) -> Json:
    """Return a pod that uses one claim."""
    pod = user_pod(name, {}, script, resourceClaims=[{"name": "gpu", **source}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return pod


def daemon_set(name: str, **source: str) -> str:
    """Return a DaemonSet whose pod uses one claim and bypasses the planner."""
    container = {"name": "main", "image": CUDA, "command": ["sh", "-c", f"{FILL}; {FOREVER}"]}
    spec = {
        "containers": [container | {"resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", **source}],
        "terminationGracePeriodSeconds": 0,
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    whole = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return json.dumps({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": whole})


def daemon_sets(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets"


PODS = f"/api/v1/namespaces/{USER}/pods"


def served(product: Product, name: str = "served", timeout_s: float = 30) -> float:
    """Run a pod with a slice in the victim's namespace to its end, to check that it is served.

    Returns:
        The seconds that it took.
    """
    began = time.monotonic()
    product.create(VICTIM, claiming(name, FILL, resourceClaimTemplateName="slice"))
    product.wait(VICTIM, name, "Succeeded", timeout_s=timeout_s)
    took_s = time.monotonic() - began
    assert within(got_mib(product.log(VICTIM, name)), SLICE_MIB)
    product.delete(VICTIM, name)
    return took_s


def messages_of(product: Product, name: str, namespace: str = USER) -> str:
    """Return the messages of a pod's conditions and events, one a line."""
    pod = product.pod(namespace, name)
    found = [c.get("message", "") for c in pod["status"].get("conditions", []) if c.get("reason") != "SchedulingGated"]
    events = product.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return "\n".join([*found, *(e["message"] for e in events if e["involvedObject"]["name"] == name)])


def wait_told(product: Product, name: str, *texts: str, namespace: str = USER) -> str:
    def said() -> str:
        found = messages_of(product, name, namespace)
        return found if all(text in found for text in texts) else ""

    try:
        return product.cluster.wait_for(said, f"{name} to be told {texts}", 40)
    except TimeoutError as error:
        error.add_note(product.cluster.kubectl("describe", "pod", name, "-n", namespace))
        raise


def given(product: Product, namespace: str) -> dict[str, list[str]]:
    """Return the names of the devices that are allocated to each claim of a namespace, by the name of the claim."""
    return {
        one["metadata"]["name"]: [r["device"] for r in one["status"]["allocation"]["devices"]["results"]]
        for one in product.api.get(claims(namespace))["items"]
        if "allocation" in one.get("status", {})
    }


def test_parameters_that_are_not_exactly_ours_are_refused_when_a_claim_is_created(product: Product) -> None:
    answers = {
        name: refusal(product, claims(USER), claim_of_parameters(name, text)) for name, text in UNREADABLE.items()
    }
    for name, answer in answers.items():
        assert "hint: " in answer, f"{name}: {answer or 'it was created'}"
        assert "Internal" not in answer, f"{name}: {answer}"
        assert len(answer) < 3000, name
    body = json.loads(claim_of_parameters("t", UNREADABLE["devices-of-others"]))
    body |= {"kind": "ResourceClaimTemplate", "spec": {"spec": body["spec"]}}
    assert "unknown field" in refusal(product, templates(USER), json.dumps(body))
    served(product)


def test_parameters_that_reach_the_agent_are_refused_in_an_event_of_the_pod(product: Product) -> None:
    """The parameters are for NVIDIA's driver, because admission does not check those."""
    kinds = {
        "deep": '{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","a":' + "[" * 1200 + "]" * 1200 + "}",
        "objects": '{"a":' * 1200 + "1" + "}" * 1200,
        "surrogate": '{"apiVersion":"\\ud800","kind":"GpuConfig"}',
        "types": '{"apiVersion":["x"],"kind":{"a":1}}',
        "devices": '{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","devices":["gpu-0"]}',
    }
    for name, text in kinds.items():
        as_user(product, claims(PAST), claim_of_parameters(name, text, "gpu.nvidia.com"))
        as_user(product, daemon_sets(PAST), daemon_set(name, resourceClaimName=name))
    for name in kinds:
        (pod,) = product.cluster.wait_for(partial(named, product, name), f"the pod of {name}")
        wait_told(product, pod, "NodePrepareResources failed", "hint: ", namespace=PAST)
        assert product.pod(PAST, pod)["status"]["phase"] == "Pending"
    assert product.gpu_node.slots() == []
    served(product)


def named(product: Product, label: str) -> list[str]:
    found = product.api.get(f"/api/v1/namespaces/{PAST}/pods?labelSelector=app%3D{label}")["items"]
    return [pod["metadata"]["name"] for pod in found]


def test_pods_that_nobody_plans_have_no_devices_by_claims(product: Product) -> None:
    """kube-scheduler would allocate devices for such pods without checking the limit of the queue.

    A user can make a pod look like one that is never planned, by its owner or by an annotation.
    """
    as_user(product, claims(USER), claim("mine", asking(sliced())))
    as_user(product, daemon_sets(USER), daemon_set("set", resourceClaimName="mine"))
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "none", "uid": "0", "controller": True}
    forged: dict[str, Json] = {
        "owner": {"ownerReferences": [owner]},
        "mirror": {"annotations": {"kubernetes.io/config.mirror": "x"}},
    }
    for name, metadata in forged.items():
        for source in ("mine", "later"):
            pod = claiming(f"{name}-{source}", resourceClaimName=source)
            pod["metadata"] |= metadata
            answer = refusal(product, PODS, json.dumps(pod))
            assert "no queue limit would apply" in answer, answer
            assert "hint: " in answer

    def said() -> bool:
        events = product.api.get(f"/api/v1/namespaces/{USER}/events")["items"]
        return any(
            "no queue limit would apply" in e["message"] for e in events if e["involvedObject"]["kind"] == "DaemonSet"
        )

    product.cluster.wait_for(said, "an event of the DaemonSet")
    served(product)
    assert given(product, USER) == {}


def test_claims_that_cannot_be_counted_are_refused_or_explained(product: Product) -> None:
    """If the claim exists, admission may refuse the pod. If the claim is created later, the pod waits with a reason."""
    waiting = {}
    for kind, (exactly, why) in UNCOUNTED.items():
        for name, order in ((f"{kind}-first", (0, 1)), (f"{kind}-later", (1, 0))):
            one = claims(USER), claim(name, asking(exactly))
            pod = PODS, json.dumps(claiming(name, resourceClaimName=name))
            answers = [refusal(product, *(one, pod)[number]) for number in order]
            answer = "".join(answers)
            assert answer == "" or (why in answer and "Internal" not in answer), f"{name}: {answer}"
            if not answer:
                waiting[name] = why
    served(product)
    for name, why in waiting.items():
        wait_told(product, name, why, "hint: " if why else "")
        assert product.pod(USER, name)["status"]["phase"] == "Pending"
    assert given(product, USER) == {}


def test_claims_of_many_requests_and_selectors_stop_nobody(product: Product) -> None:
    costly = 'device.attributes["calabash.dev"].uuid.matches("(a*)*b") || ' * 20 + "false"
    ways = [
        {"name": f"w{n}", "deviceClassName": SLICE, "selectors": [{"cel": {"expression": costly}}]} for n in range(8)
    ]
    requests = [{"name": f"r{n}", "firstAvailable": ways} for n in range(32)]
    spec = {"devices": {"requests": requests}}
    for number in range(3):
        as_user(product, claims(USER), claim(f"large{number}", spec))
        as_user(product, PODS, json.dumps(claiming(f"large{number}", resourceClaimName=f"large{number}")))
    took_s = served(product, timeout_s=60)
    assert took_s < 20
    for number in range(3):
        wait_told(product, f"large{number}", "")
        assert product.pod(USER, f"large{number}")["status"]["phase"] == "Pending"
    assert given(product, USER) == {}


def test_admin_access_is_refused_outside_of_namespaces_for_administrators(product: Product) -> None:
    exactly = {"deviceClassName": "observed.calabash.dev", "adminAccess": True, "allocationMode": "All"}
    answer = refusal(product, claims(USER), claim("look", asking(exactly)))
    assert "admin-access" in answer
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "look"}}
    body["spec"] = {"spec": asking(exactly)}
    assert "admin-access" in refusal(product, templates(USER), json.dumps(body))
    account = f"--as=system:serviceaccount:{USER}:{USER}"
    label = ("label", "namespace", USER, "resource.kubernetes.io/admin-access=true")
    with pytest.raises(RuntimeError, match="forbidden"):
        product.cluster.kubectl(account, *label)


def test_claim_status_is_not_the_users_to_write(product: Product) -> None:
    """Write an allocation with devices of other users into a claim.

    The planner would believe such an allocation until the agent checks it.
    """
    body = json.loads(claim("forged", asking(sliced())))
    device = {"request": "r0", "driver": "calabash.dev", "pool": product.gpu_node.node.name, "device": "gpu-0"}
    body["status"] = {"allocation": {"devices": {"results": [device]}}}
    as_user(product, claims(USER), json.dumps(body))
    assert given(product, USER) == {}
    account = f"--as=system:serviceaccount:{USER}:{USER}"
    patch = ("patch", "resourceclaim", "forged", "-n", USER, "--subresource=status", "--type=merge")
    with pytest.raises(RuntimeError, match="forbidden"):
        product.cluster.kubectl(account, *patch, f"--patch={json.dumps({'status': body['status']})}")


def test_devices_of_others_are_not_given_by_their_names(product: Product) -> None:
    product.api.create(claims(VICTIM), {"metadata": {"name": "own"}, "spec": asking({"deviceClassName": WHOLE})})
    product.create(VICTIM, claiming("own", resourceClaimName="own"))
    product.wait(VICTIM, "own", "Running")
    (device,) = given(product, VICTIM)["own"]
    slices = product.api.get(f"{GROUP}/resourceslices")["items"]
    listed = [d for one in slices for d in one["spec"].get("devices", ()) if d["name"] == device]
    uuid = listed[0]["attributes"]["uuid"]["string"]
    selector = [{"cel": {"expression": f'device.attributes["calabash.dev"].uuid == "{uuid}"'}}]
    tolerations = [{"operator": "Exists"}]
    wanted = {
        "whole": {"deviceClassName": WHOLE, "selectors": selector, "tolerations": tolerations},
        "slice": sliced(selectors=selector, tolerations=tolerations),
    }
    for name, exactly in wanted.items():
        as_user(product, claims(USER), claim(name, asking(exactly)))
        as_user(product, PODS, json.dumps(claiming(f"pod-{name}", resourceClaimName=name)))
        as_user(product, claims(PAST), claim(name, asking(exactly)))
        as_user(product, daemon_sets(PAST), daemon_set(name, resourceClaimName=name))
    for name in wanted:
        wait_told(product, f"pod-{name}", "cannot allocate all claims")
    served(product)
    assert given(product, USER) == given(product, PAST) == {}
    assert len(product.gpu_node.slots()) == 1


def test_claims_and_templates_of_other_namespaces_are_not_found(product: Product) -> None:
    product.api.create(claims(VICTIM), {"metadata": {"name": "own"}, "spec": asking(sliced())})
    product.create(VICTIM, claiming("own", resourceClaimName="own"))
    product.wait(VICTIM, "own", "Running")
    for source in ({"resourceClaimTemplateName": f"{VICTIM}/slice"}, {"resourceClaimName": f"{VICTIM}/own"}):
        assert "Invalid value" in refusal(product, PODS, json.dumps(claiming("path", **source)))
    as_user(product, PODS, json.dumps(claiming("of-template", resourceClaimTemplateName="slice")))
    as_user(product, PODS, json.dumps(claiming("of-claim", resourceClaimName="own")))
    for name in ("of-template", "of-claim"):
        assert VICTIM not in wait_told(product, name, "does not exist yet")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "own", "uid": product.pod(VICTIM, "own")["metadata"]["uid"]}
    forged = json.loads(claim("forged", asking(sliced())))
    forged["metadata"] |= {"ownerReferences": [owner | {"controller": True}]}
    forged["metadata"] |= {"annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"}}
    as_user(product, claims(USER), json.dumps(forged))
    served(product)
    assert product.pod(VICTIM, "own")["status"]["phase"] == "Running"
    assert len(product.gpu_node.slots()) == 1


def test_gang_of_another_namespace_is_not_joined(product: Product) -> None:
    gang = {"calabash.dev/gang": "g", "calabash.dev/gang-size": "2"}
    victim = claiming("g0", resourceClaimTemplateName="slice")
    victim["metadata"]["annotations"] = gang
    product.create(VICTIM, victim)
    as_user(product, claims(USER), claim("mine", asking(sliced())))
    for name, group in (("same", "g"), ("path", f"{VICTIM}/g")):
        pod = claiming(name, resourceClaimName="mine")
        pod["metadata"]["annotations"] = gang | {"calabash.dev/gang": group}
        answer = refusal(product, PODS, json.dumps(pod))
        assert answer == "" or "hint: " in answer, answer
    wait_told(product, "same", "needs 2 members, 1 submitted")
    served(product)
    assert product.pod(VICTIM, "g0")["status"]["phase"] == "Pending"
    assert product.gpu_node.slots() == []


def test_pods_that_share_a_claim_have_its_limit_together(product: Product) -> None:
    as_user(product, claims(USER), claim("shared", asking(sliced())))
    count = 6
    for number in range(count):
        pod = claiming(f"s{number}", f"load hold 600 & {FOREVER}", resourceClaimName="shared")
        as_user(product, PODS, json.dumps(pod))
    for number in range(count):
        product.wait(USER, f"s{number}", "Running")
    assert len(product.gpu_node.slots()) == 1
    served(product)
    cards = [product.gpu_node.card(number)["used_bytes"] // MIB for number in range(CARDS)]
    assert sum(cards) <= SLICE_MIB


def asking_by_name(name: str, resource: str) -> Json:
    """Return a pod whose container asks for one device by an extended resource name.

    kube-scheduler creates a claim for it.
    """
    pod = user_pod(name, {}, FOREVER)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    return pod


def test_devices_asked_for_by_the_name_of_a_device_class_keep_to_the_limit_of_the_queue(product: Product) -> None:
    """kube-scheduler creates the claims of such pods itself. Without a plan, the limit of the queue would not apply."""
    resource = f"deviceclass.resource.kubernetes.io/{WHOLE}"
    queue = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue", "metadata": {"name": USER}, "spec": {"limit": 1}}
    product.cluster.kubectl("apply", "-f", "-", text=json.dumps(queue))
    product.cluster.kubectl("label", "namespace", USER, f"calabash.dev/queue={USER}")
    try:
        for name in ("first", "second"):
            as_user(product, PODS, json.dumps(asking_by_name(name, resource)))
        product.cluster.wait_for(lambda: phases(product).count("Running") == 1, "one of them to run", 60)
        (waits,) = [name for name in ("first", "second") if product.pod(USER, name)["status"]["phase"] == "Pending"]
        wait_told(product, waits, "limit")
        assert [len(devices) for devices in given(product, USER).values()] == [1]
        assert len(product.gpu_node.slots()) == 1
        runs = "second" if waits == "first" else "first"
        product.delete(USER, runs)
        product.wait(USER, waits, "Running", timeout_s=60)
        product.delete(USER, waits)
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "none", "uid": "0", "controller": True}
        forged = asking_by_name("forged", resource)
        forged["metadata"] |= {"ownerReferences": [owner]}
        answer = refusal(product, PODS, json.dumps(forged))
        assert "no queue limit would apply" in answer, answer
        assert "hint: " in answer
        answer = refusal(product, PODS, json.dumps(asking_by_name("odd", f"{resource}-of-nobody")))
        assert "does not exist" in answer, answer
    finally:
        product.cluster.kubectl("label", "namespace", USER, "calabash.dev/queue-")
    served(product)


def phases(product: Product) -> list[str]:
    """Return the phases of the user's pods."""
    return [pod["status"]["phase"] for pod in product.api.get(PODS)["items"]]
