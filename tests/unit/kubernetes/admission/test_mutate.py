"""Tests of the mutating webhook: all dialects result in one form, and a second review changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.kubernetes.admission.applied import applied

from calabash.kubernetes.admission.mutate import mutate
from calabash.kubernetes.admission.scope import ClaimsAsked, NamespaceTerms, namespace_terms
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.validate import validate
from calabash.kubernetes.dialects.pod import pod_of
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.quantity import parse_quantity
from calabash.kubernetes.pod_request import read_request, write_request
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest, Isolation

EXAMPLES = Path(__file__).parents[4] / "examples" / "kube" / "dialects"
OURS = AdmissionSettings()
THEIRS = AdmissionSettings(second_scheduler=False)
TEAM = NamespaceTerms(name="team")
APART = namespace_terms("team", {names.ISOLATION: "brokered"}, {})


def as_stored(tree: Any) -> Any:
    """Return the pod as a webhook receives it: amounts are strings, requests are set from limits, the scheduler is default."""
    tree = copy.deepcopy(tree)
    spec = tree["spec"]
    spec.setdefault("schedulerName", "default-scheduler")
    tree.setdefault("metadata", {}).setdefault("namespace", "team")
    for container in spec["containers"] + spec.get("initContainers", []):
        resources = container.setdefault("resources", {})
        for key, amounts in list(resources.items()):
            resources[key] = {name: str(written) for name, written in amounts.items()}
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    return tree


def asking(limits: dict[str, Any], **more: Any) -> Any:
    return as_stored({"metadata": more, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}})


def admitted(tree: Any, *, namespace: NamespaceTerms = TEAM, by: AdmissionSettings = OURS) -> Any:
    return applied(tree, mutate(pod_of(tree), namespace, by).patch)


def example(name: str) -> Any:
    return as_stored(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()))


SERVED = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
AMOUNTS = {
    "alauda": {"gpus": "1", "memory": "8192Mi", "cores": "50"},
    "aliyun": {"gpus": "1", "memory": "6144Mi", "cores": "30"},
    "aliyun-four-cards": {"gpus": "4", "memory": "2048Mi"},
    "bitfusion": {"gpus": "1", "cores": "50"},
    "bitfusion-memory": {"gpus": "1", "memory": "7630Mi"},
    "hami": {"gpus": "1", "memory": "3000Mi", "cores": "30"},
    "hami-percentage": {"gpus": "2"},
    "kai": {"gpus": "1", "cores": "50"},
    "kai-memory": {"gpus": "2", "memory": "2000Mi"},
    "native": {"gpus": "2", "memory": "10Gi", "cores": "25"},
    "nvidia": {"gpus": "2", "cores": "100"},
    "nvidia-mig": {"gpus": "1", "cores": "100"},
    "nvidia-shared": {"gpus": "1", "cores": "100"},
    "qgpu": {"gpus": "1", "memory": "5120Mi", "cores": "30"},
    "qgpu-two-cards": {"gpus": "2", "memory": "30720Mi", "cores": "80"},
    "vcuda": {"gpus": "1", "memory": "5120Mi", "cores": "30"},
    "volcano": {"gpus": "2", "memory": "3000Mi", "cores": "50"},
}


@pytest.mark.parametrize("name", SERVED)
def test_a_pod_in_any_words_comes_into_one_form(name: str) -> None:
    pod = admitted(example(name))
    (container,) = pod["spec"]["containers"]
    amounts = {f"calabash.dev/{word}": written for word, written in AMOUNTS[name].items()}
    assert container["resources"] == {"limits": amounts, "requests": amounts}
    asked = read_request(pod["metadata"]["annotations"][names.REQUEST])
    assert pod["metadata"]["annotations"][names.DIALECT] == asked.dialect == name.partition("-")[0]
    assert pod["spec"]["schedulerName"] == "calabash"
    assert pod["spec"]["schedulingGates"] == [{"name": names.PLAN_GATE}]
    assert pod["spec"]["tolerations"] == [{"key": names.DEVICE_TAINT, "operator": "Exists"}]


@pytest.mark.parametrize("by", [OURS, THEIRS])
@pytest.mark.parametrize("name", SERVED)
def test_the_same_again_changes_nothing_and_is_allowed(name: str, by: AdmissionSettings) -> None:
    pod = admitted(example(name), by=by)
    assert mutate(pod_of(pod), TEAM, by).patch == ()
    validate(None, pod_of(pod), "ann", TEAM, by)


def test_without_a_second_scheduler_amounts_that_no_node_offers_are_in_the_annotation_alone() -> None:
    for name, scheduler in (("native", "default-scheduler"), ("volcano", "default-scheduler")):
        before = example(name)
        pod = admitted(before, by=THEIRS)
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {names.GPUS: "2"}
        assert pod["spec"]["schedulerName"] == scheduler
        assert pod["spec"]["schedulingGates"] == [{"name": names.PLAN_GATE}]
        both = [read_request(p["metadata"]["annotations"][names.REQUEST]) for p in (pod, admitted(before))]
        assert both[0] == both[1]
    mine = asking({names.GPUS: 1})
    mine["spec"]["schedulerName"] = "mine"
    assert admitted(mine, by=THEIRS)["spec"]["schedulerName"] == "mine"


def test_what_does_not_concern_devices_stays_as_it_was() -> None:
    tree = asking(
        {"cpu": "2", "nvidia.com/gpu": "1", "example.com/nic": "1"}, annotations={"a/b": "c~d"}, labels={"x": "y"}
    )
    tree["spec"]["tolerations"] = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]
    tree["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    tree["spec"]["containers"].append({"name": "web", "resources": {"limits": {"cpu": "1"}}})
    tree["spec"]["containers"][0]["resources"]["claims"] = [{"name": "net"}]
    before = copy.deepcopy(tree)
    pod = admitted(tree)
    assert tree == before
    main, web = pod["spec"]["containers"]
    assert main["resources"]["limits"] == {"cpu": "2", "example.com/nic": "1", names.GPUS: "1", names.CORES: "100"}
    assert main["resources"]["claims"] == [{"name": "net"}]
    assert web == before["spec"]["containers"][1]
    assert pod["metadata"]["annotations"]["a/b"] == "c~d"
    assert pod["metadata"]["labels"] == {"x": "y"}
    assert [t["key"] for t in pod["spec"]["tolerations"]] == ["node.kubernetes.io/not-ready", names.DEVICE_TAINT]
    assert [g["name"] for g in pod["spec"]["schedulingGates"]] == ["example.com/wait", names.PLAN_GATE]


def test_init_containers_and_sidecars_are_brought_into_form_as_well() -> None:
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    tree = as_stored(
        {
            "spec": {
                "initContainers": [
                    {"name": "warm", "resources": gpu},
                    {"name": "side", "restartPolicy": "Always", "resources": gpu},
                ],
                "containers": [{"name": "main"}],
            }
        }
    )  # fmt: skip
    pod = admitted(tree)
    assert [c["resources"]["limits"][names.GPUS] for c in pod["spec"]["initContainers"]] == ["1", "1"]
    assert pod["spec"]["containers"] == [{"name": "main", "resources": {}}]


@pytest.mark.parametrize(
    ("namespace", "metadata"),
    [
        (NamespaceTerms(name="kube-system"), {}),
        (NamespaceTerms(name="calabash-system"), {}),
        (namespace_terms("dark", {names.ADMISSION: "off"}, {}), {}),
        (TEAM, {"annotations": {"kubernetes.io/config.mirror": "x"}}),
        (TEAM, {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "controller": True}]}),
    ],
)
def test_pods_that_are_not_ours_to_touch_are_left_alone_and_may_carry_no_plan(
    namespace: NamespaceTerms, metadata: dict[str, Any]
) -> None:
    tree = asking({"nvidia.com/gpu": 1}, **metadata)
    assert mutate(pod_of(tree), namespace, OURS).patch == ()
    validate(None, pod_of(tree), "ann", namespace, OURS)
    tree["metadata"]["annotations"] = {**metadata.get("annotations", {}), names.PLAN: "{}"}
    with pytest.raises(CalabashError, match="admission does not review") as refused:
        validate(None, pod_of(tree), "ann", namespace, OURS)
    assert refused.value.reason is Reason.NOT_PERMITTED


UNPLANNED: list[dict[str, Any]] = [
    {"annotations": {"kubernetes.io/config.mirror": "x"}},
    {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "controller": True}]},
]


@pytest.mark.parametrize("metadata", UNPLANNED)
def test_claim_for_devices_of_a_pod_that_nobody_plans_is_refused(metadata: dict[str, Any]) -> None:
    tree = asking({}, **metadata)
    tree["spec"]["resourceClaims"] = [
        {"name": "net", "resourceClaimName": "n"},
        {"name": "gpu", "resourceClaimName": "g"},
    ]
    pod = pod_of(tree)
    ours: dict[str, ClaimsAsked] = {
        "asks for devices": {"net": None, "gpu": GpuRequest()},
        "the request of claim gpu is not known": {"net": None},
        "asks for devices,": {"net": None, "gpu": CalabashError("all of them", hint="say how many")},
    }
    for words, claims in ours.items():
        with pytest.raises(CalabashError, match=words) as refused:
            mutate(pod, replace(TEAM, claims=claims), OURS)
        assert refused.value.reason is Reason.NOT_PERMITTED
        assert refused.value.hint
        dark = replace(namespace_terms("dark", {names.ADMISSION: "off"}, {}), claims=claims)
        assert mutate(pod, dark, OURS).patch == ()
    for others in (None, {"net": None, "gpu": None}):
        assert mutate(pod, replace(TEAM, claims=others), OURS).patch == ()


def test_a_pod_that_asks_for_no_device_is_not_changed() -> None:
    assert mutate(pod_of(asking({"cpu": "1"})), TEAM, OURS).patch == ()


def test_a_pod_that_names_its_node_is_denied() -> None:
    tree = asking({"nvidia.com/gpu": 1})
    tree["spec"]["nodeName"] = "gpu-1"
    with pytest.raises(CalabashError, match=r"sets spec\.nodeName to gpu-1") as refused:
        mutate(pod_of(tree), TEAM, OURS)
    assert "nodeSelector" in refused.value.hint


def test_a_plan_that_came_with_a_copied_pod_is_taken_away() -> None:
    tree = admitted(example("hami"))
    tree["metadata"]["annotations"][names.PLAN] = '{"id":"old"}'
    del tree["spec"]["schedulingGates"]
    pod = admitted(tree)
    assert names.PLAN not in pod["metadata"]["annotations"]
    assert pod["spec"]["schedulingGates"] == [{"name": names.PLAN_GATE}]
    assert pod["metadata"]["annotations"][names.REQUEST] == tree["metadata"]["annotations"][names.REQUEST]


def test_a_request_that_does_not_agree_with_the_containers_is_made_anew() -> None:
    forged = admitted(example("hami"))["metadata"]["annotations"][names.REQUEST].replace("3000", "80000")
    for text in (forged, "junk", forged.replace('"hami"', '"magic"')):
        tree = asking({names.GPUS: "1", names.MEMORY: "1Gi", names.CORES: "10"}, annotations={names.REQUEST: text})
        asked = read_request(admitted(tree)["metadata"]["annotations"][names.REQUEST])
        assert asked.dialect == "native"
        assert (asked.containers[0].request.memory_mib, asked.containers[0].request.core_percent) == (1024, 10)


def test_a_container_that_another_webhook_adds_between_two_calls_is_read_and_the_others_stay_understood() -> None:
    tree = admitted(example("vcuda"))
    first = read_request(tree["metadata"]["annotations"][names.REQUEST])
    gpu = {"nvidia.com/gpu": "1"}
    tree["spec"]["containers"].append({"name": "added", "resources": {"limits": gpu, "requests": gpu}})
    pod = admitted(tree)
    asked = read_request(pod["metadata"]["annotations"][names.REQUEST])
    assert asked.dialect == "nvidia+vcuda"
    assert asked.containers[0] == first.containers[0]
    assert pod["spec"]["containers"][1]["resources"]["limits"] == {names.GPUS: "1", names.CORES: "100"}
    assert mutate(pod_of(pod), TEAM, OURS).patch == ()


def test_a_pods_own_queue_must_be_one_that_its_namespace_allows() -> None:
    tree = asking({names.GPUS: 1}, labels={names.QUEUE: "prod"})
    with pytest.raises(
        CalabashError, match="queue prod is not allowed in namespace team, whose pods may use: default"
    ) as refused:
        mutate(pod_of(tree), TEAM, OURS)
    assert refused.value.reason is Reason.NOT_PERMITTED
    for labels, said in (
        ({names.QUEUE: "prod"}, {}),
        ({}, {names.QUEUES: "dev, prod"}),
        ({names.QUEUE: "dev"}, {names.QUEUES: "*"}),
    ):
        pod = admitted(tree, namespace=namespace_terms("team", labels, said))
        assert read_request(pod["metadata"]["annotations"][names.REQUEST]).queue == "prod"


def owned(kind: str, *, controller: bool = True, **annotations: str) -> Any:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": "u", "controller": controller}
    said = {names.MOVABLE: "true"} | {
        f"{names.GROUP}/{key.replace('_', '-')}": text for key, text in annotations.items()
    }
    return asking({names.GPUS: 1}, annotations=said, ownerReferences=[owner])


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "Job", "JobSet", "Whatever"])
def test_a_pod_that_its_owner_makes_again_may_be_movable(kind: str) -> None:
    pod = admitted(owned(kind))
    assert read_request(pod["metadata"]["annotations"][names.REQUEST]).movable
    assert mutate(pod_of(pod), TEAM, OURS) == mutate(pod_of(pod), TEAM, OURS)
    validate(None, pod_of(pod), "ann", TEAM, OURS)


@pytest.mark.parametrize(
    "tree", [asking({names.GPUS: 1}, annotations={names.MOVABLE: "true"}), owned("Job", controller=False)]
)
def test_a_pod_that_nobody_makes_again_is_not_movable_for_it_would_be_gone(tree: Any) -> None:
    with pytest.raises(CalabashError, match="a pod without a controller") as refused:
        mutate(pod_of(tree), TEAM, OURS)
    assert refused.value.hint == "remove the annotation, or let a Deployment, StatefulSet or Job make the pod"
    with pytest.raises(CalabashError, match="a pod without a controller"):
        validate(None, pod_of(tree), "ann", TEAM, OURS)
    tree["metadata"]["annotations"][names.MOVABLE] = "false"
    admitted(tree)


def test_that_members_of_a_gang_are_not_moved_is_said() -> None:
    mutation = mutate(pod_of(owned("Job", gang="g", gang_size="2")), TEAM, OURS)
    assert mutation.warnings == (
        "calabash.dev/movable has no effect: members of gang g run together, and are not moved one by one",
    )


def test_another_systems_queue_that_the_namespace_does_not_allow_is_left_out_with_a_warning() -> None:
    tree = example("volcano")
    mutation = mutate(pod_of(tree), TEAM, OURS)
    assert mutation.warnings == ("queue batch is not allowed in this namespace: the pod waits in default",)
    asked = read_request(applied(tree, mutation.patch)["metadata"]["annotations"][names.REQUEST])
    assert (asked.queue, asked.containers[0].request.queue) == ("", "default")


def quota_sum(pod: Any, name: str) -> Any:
    found = [c.get("resources", {}).get("requests", {}) for c in pod["spec"]["containers"]]
    return sum(parse_quantity(requests.get(name, 0), what=name) for requests in found)


NAMES = sorted({name for dialect in DIALECTS for name in dialect.resources if "<" not in name} | {"cpu"})
amounts = st.dictionaries(
    st.sampled_from(NAMES), st.integers(0, 120).map(str) | st.sampled_from(["8Gi", "4G", "x"]), max_size=3
)
words = st.dictionaries(
    st.sampled_from(
        [names.REQUEST, names.PLAN, names.DIALECT, names.POLICY, names.MODELS, "gpu-fraction", "nvidia.com/use-gputype",
         names.MODE]
    ),
    st.sampled_from(["burst", "best-effort", "vgpu", "A100", "0.5", "{}", "native"]) | st.text(max_size=4),
    max_size=3,
)  # fmt: skip
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("abc")}, optional={"resources": st.fixed_dictionaries({"limits": amounts})}
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=examples(400))
@given(containers, words, st.booleans(), st.booleans(), st.sampled_from(["default-scheduler", "kai-scheduler"]))
def test_whatever_is_admitted_is_in_form_counts_right_and_stays_as_it_is(
    found: list[Any], said: dict[str, str], stored: bool, second: bool, scheduler: str
) -> None:
    tree = {
        "metadata": {"namespace": "team", "annotations": said},
        "spec": {"containers": found, "schedulerName": scheduler},
    }
    tree = as_stored(tree) if stored else tree
    by = OURS if second else THEIRS
    try:
        pod = admitted(tree, by=by)
    except CalabashError:
        return
    assert mutate(pod_of(pod), TEAM, by).patch == ()
    if pod == tree:
        return
    validate(None, pod_of(pod), "ann", TEAM, by)
    asked = read_request(pod["metadata"]["annotations"][names.REQUEST])
    assert quota_sum(pod, names.GPUS) == sum(part.request.count for part in asked.containers)
    if second:
        memory = sum((part.request.memory_mib or 0) << 20 for part in asked.containers)
        assert 0 <= memory - quota_sum(pod, names.MEMORY) < len(asked.containers) << 20
    left = {name for c in pod["spec"]["containers"] for name in c.get("resources", {}).get("limits", {})}
    asking_containers = {part.container for part in asked.containers}
    if asking_containers == {c["name"] for c in pod["spec"]["containers"]}:
        assert left <= {names.GPUS, names.MEMORY, names.CORES, "cpu"}
    assert write_request(asked) == pod["metadata"]["annotations"][names.REQUEST]
    msgspec.json.encode(pod)


def test_a_namespace_is_not_let_into_another_tenants_queue_whatever_it_says() -> None:
    tenants = {"vision.default": "vision", "vision.train": "vision", "speech.default": "speech"}
    team = NamespaceTerms(name="team", queue="vision.train", queues=frozenset({"*"}), tenants=tenants)
    allowed = {queue for queue in (*tenants, "anybodys") if team.allows(queue)}
    assert allowed == {"vision.train", "vision.default", "anybodys"}
    assert not NamespaceTerms(name="x", queues=frozenset({"speech.default"}), tenants=tenants).allows("speech.default")


def test_a_pod_is_given_to_the_planner_of_its_queues_pool_whatever_scheduler_it_names() -> None:
    by = AdmissionSettings(shards=("a", "b"))
    team = NamespaceTerms(
        name="team",
        queue="research",
        queues=frozenset({"prod", "rest"}),
        pools={"research": "a", "prod": "b", "rest": "c"},
    )

    def scheduler(queue: str = "", named: str = "default-scheduler", settings: AdmissionSettings = by) -> Any:
        pod = asking({names.GPUS: "1"}, labels={names.QUEUE: queue} if queue else {})
        pod["spec"]["schedulerName"] = named
        return admitted(pod, namespace=team, by=settings)["spec"]["schedulerName"]

    assert [scheduler(), scheduler("prod"), scheduler(named="calabash-b")] == ["calabash-a", "calabash-b", "calabash-a"]
    assert scheduler("rest") == "calabash", "pool c has no planner of its own"
    assert scheduler("prod", settings=OURS) == "calabash"


@pytest.mark.parametrize(
    ("limits", "said", "level"),
    [
        ({names.MEMORY: "8Gi", names.CORES: "30"}, {}, Isolation.BROKERED),
        ({"nvidia.com/gpu": "1"}, {}, Isolation.BROKERED),
        ({names.MEMORY: "8Gi"}, {names.ISOLATION: "cooperative"}, Isolation.BROKERED),
        ({names.MEMORY: "8Gi"}, {names.ISOLATION: "hardware"}, Isolation.HARDWARE),
        ({names.GPUS: "1"}, {names.MODE: "exclusive"}, Isolation.BROKERED),
    ],
)
def test_a_namespace_says_the_least_isolation_of_its_pods(
    limits: dict[str, str], said: dict[str, str], level: Isolation
) -> None:
    once = admitted(asking(limits, annotations=said), namespace=APART)
    (part,) = read_request(once["metadata"]["annotations"][names.REQUEST]).containers
    assert part.request.isolation is level
    assert admitted(once, namespace=APART) == once
    validate(None, pod_of(once), "ann", APART, OURS)


@pytest.mark.parametrize(
    ("namespace", "said", "why"),
    [
        (APART, {names.MODE: "vgpu"}, "label calabash.dev/isolation=brokered: mode vgpu isolates at level cooperative"),
        (APART, {names.SPILL: "1Gi"}, "mode vgpu isolates at level cooperative, asked brokered"),
        (namespace_terms("team", {names.ISOLATION: "total"}, {}), {}, "isolation 'total' is not known"),
    ],
)
def test_what_cannot_be_had_at_the_level_of_the_namespace_is_refused(
    namespace: NamespaceTerms, said: dict[str, str], why: str
) -> None:
    with pytest.raises(CalabashError, match=why):
        admitted(asking({names.MEMORY: "8Gi"}, annotations=said), namespace=namespace)
