"""Texts that users of one namespace read name no pod, budget or queue of another namespace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kubernetes.planner.virtual import Cluster

from calabash.adapters.kube.objects.core import EVENT, NAMESPACE, POD
from calabash.adapters.kubelet.service import refusal
from calabash.kubernetes.objects.names import EXPLANATION, PLANNED
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.tenants import TenantMap
from calabash.kubernetes.objects.visibility import (
    budget_reference,
    for_namespace,
    pod_reference,
    pod_references,
    restricted_to_namespace,
)
from calabash.kubernetes.planner.apply.api_writes import ApiWrites
from calabash.kubernetes.planner.decide.core import OPTIONS
from calabash.kubernetes.planner.state.budgets import BudgetFacts
from calabash.kubernetes.planner.state.facts import (
    Action,
    EvictPod,
    NamespaceFacts,
    QueueFacts,
    Report,
    SweepPod,
)
from calabash.kubernetes.server.views import displayed
from calabash.model.errors import CalabashError, Reason
from calabash.model.message_codec import decode_text, encode_text
from calabash.model.messages import (
    NAME_TYPES,
    BudgetReference,
    Message,
    Name,
    Names,
    NetworkName,
    PodReference,
    ProcessDescription,
    QueueName,
    RequestName,
    TenantName,
    UserName,
    in_full,
    names,
)
from calabash.model.request import GpuRequest
from calabash_testing.api_server.client import MemoryKube

TEAMS = ("alice", "bob", "carol")
QUEUES = [
    QueueFacts(name="alice-q", deserved=2.0),
    QueueFacts(name="bob-q", deserved=1.0),
    QueueFacts(name="carol-q"),
]


def pod(namespace: str, name: str) -> PodName:
    return PodName(uid=f"u-{namespace}-{name}", namespace=namespace, name=name)


def test_pods_of_the_readers_namespace_are_named_and_others_counted() -> None:
    pods = pod_references([pod("a", "x"), pod("b", "y"), pod("c", "z")])
    text = Message("waits for {pods} to leave", pods=pods)
    assert for_namespace(text, "a") == "waits for a/x, 2 pods of other namespaces to leave"
    assert for_namespace(text, "b") == "waits for b/y, 2 pods of other namespaces to leave"
    assert for_namespace(text, "d") == "waits for 3 pods of other namespaces to leave"
    many = pod_references([pod("a", f"x{number}") for number in range(5)])
    assert for_namespace(Message("{pods}", pods=many), "a") == "a/x0, a/x1, a/x2, 2 more of a"
    assert for_namespace(Message("for {pod}", pod=pod_reference(None)), "a") == "for 1 pod of another namespace"


def test_budgets_of_the_readers_namespace_are_named_and_others_counted() -> None:
    text = Message("kept by {budgets}", budgets=Names((budget_reference("a", "db"), budget_reference("b", "web"))))
    assert for_namespace(text, "a") == "kept by disruption budget a/db, 1 disruption budget of another namespace"
    assert (
        for_namespace(Message("{budget}", budget=budget_reference("a", "")), "a") == "several disruption budgets of a"
    )
    assert for_namespace(text, "c") == "kept by 2 disruption budgets of other namespaces"


def test_requests_are_named_by_their_pods_and_queues_only_if_they_are_the_readers() -> None:
    pods = {"u1": pod("a", "x"), "u2": pod("b", "y")}
    requests = names(RequestName, ["u1", "u2", "u3"])
    text = Message("held for {requests}; queue {queue}", requests=requests, queue=QueueName("qb"))
    words = for_namespace(text, "a", queues=lambda: {"qa"}, pod_of=pods.get)
    assert words == "held for a/x, 2 pods of other namespaces; queue (another's)"
    assert for_namespace(text, "b", queues=lambda: {"qb"}, pod_of=pods.get).endswith("; queue qb")


def test_namespace_whose_name_begins_like_the_readers_is_another() -> None:
    assert (
        for_namespace(Message("{pod}", pod=pod_reference(pod("team-b", "x"))), "team") == "1 pod of another namespace"
    )
    assert (
        for_namespace(Message("{pod}", pod=pod_reference(pod("team", "x"))), "team-b") == "1 pod of another namespace"
    )


def test_marks_that_a_user_writes_into_a_text_name_no_pod() -> None:
    forged = "\x02pod\x1falice/x\x03"
    text = Message("label {label} and {pod}", label=forged, pod=pod_reference(pod("bob", "y")))
    shown = for_namespace(decode_text(encode_text(text)), "alice")
    assert shown == "label podalice/x and 1 pod of another namespace"


def test_error_for_the_kubelet_names_no_objects_of_others() -> None:
    message = Message("device 0 is used by {allocation}", allocation=RequestName("marker-1"))
    error = CalabashError(message, hint=Message("wait for {process}", process=ProcessDescription("marker-2")))
    assert refusal(error) == "device 0 is used by (another's); hint: wait for (another's)"


def _names_of(team: str) -> st.SearchStrategy[Name]:
    kinds = {
        QueueName: f"{team}-q",
        RequestName: f"u-{team}",
        TenantName: f"{team}-tenant",
        UserName: f"{team}-user",
        ProcessDescription: f"process 7 ({team})",
        NetworkName: f"{team}-vpc/a",
        PodReference: f"{team}/pod-of-{team}",
        BudgetReference: f"{team}/budget-of-{team}",
    }
    assert kinds.keys() == set(NAME_TYPES)
    return st.sampled_from([kind(value) for kind, value in kinds.items()])


_NAMES = st.sampled_from(TEAMS).flatmap(_names_of)
_MESSAGES = st.recursive(
    st.builds(lambda name: Message("used by {name}", name=name), _NAMES)
    | st.builds(
        lambda found: Message("held for {names}", names=Names(tuple(found))), st.lists(_NAMES, min_size=1, max_size=9)
    ),
    lambda inner: st.builds(lambda left, right: Message("{left}; {right}", left=left, right=right), inner, inner),
    max_leaves=40,  # longer than the longest condition
)


@given(text=_MESSAGES, reader=st.sampled_from(TEAMS), own_condition=st.booleans())
@settings(max_examples=200)
def test_conditions_and_events_of_a_pod_have_no_names_of_others(
    text: Message, reader: str, own_condition: bool
) -> None:
    """Each string that a report writes is read back, and so are the names that the cluster's server decodes from it."""
    kube = MemoryKube()
    kube.create(NAMESPACE, {"metadata": {"name": reader}})
    made = kube.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}, reader)
    name = PodName(uid=made.metadata.uid, namespace=reader, name="p")
    pods = {f"u-{team}": pod(team, f"pod-of-{team}") for team in TEAMS if team != "carol"}  # carol's pod is deleted
    message = restricted_to_namespace(text, reader, queues=lambda: {f"{reader}-q"}, pod_of=pods.get)
    shown = for_namespace(text, reader, queues=lambda: {f"{reader}-q"}, pod_of=pods.get)
    assert in_full(message) == shown

    ApiWrites(kube).report(Report(pod=name, reason=Reason.NO_CAPACITY, message=message, own_condition=own_condition))
    written = kube.get(POD, "p", reader)
    assert written is not None
    conditions = {condition.type: condition.message for condition in written.status.conditions}
    events = [event.message for event in kube.list(EVENT, reader).items]
    assert events == [conditions[PLANNED if own_condition else "PodScheduled"]]
    assert shown.startswith(events[0])
    decoded = displayed(decode_text(conditions.get(EXPLANATION, "")), TenantMap())
    for written_text in (*conditions.values(), *events, decoded):
        assert [team for team in TEAMS if team in written_text and team != reader] == []


class Recorded(Cluster):
    """A cluster that records the text of every action, with the namespace whose users can read it."""

    def carry_out(self, action: Action, *, fail: bool = False) -> None:
        if isinstance(action, Report | EvictPod | SweepPod):
            self.texts.append((action.pod.namespace, in_full(action.message)))
        super().carry_out(action, fail=fail)

    @property
    def texts(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = self.__dict__.setdefault("_texts", [])
        return found


def _budgets(cluster: Cluster, chance: random.Random) -> None:
    for team in TEAMS:
        allowed = chance.choice([0, 0, 5])
        cluster.core.budget_changed(BudgetFacts(namespace=team, name=f"budget-of-{team}", terms=(), allowed=allowed))


def _requests(chance: random.Random) -> Iterator[GpuRequest]:
    while True:
        kind = chance.randrange(4)
        gang = chance.choice(["", "ring"])
        yield (
            GpuRequest(count=chance.choice([1, 2]), gang=gang, gang_size=2 if gang else 1)
            if kind < 2
            else GpuRequest(memory_mib=chance.choice([8192, 30000]), core_percent=25, priority=chance.choice([0, 5]))
        )


@pytest.mark.parametrize("seed", range(12))
def test_no_text_of_a_random_cluster_names_another_namespace(seed: int) -> None:
    """Pods and budgets carry the names of their teams, so that a name of another team in a text is found."""
    chance = random.Random(seed)
    options = replace(OPTIONS, defragment_moves_max=4, defragment_wait_s=1.0, defragment_rest_s=0.0)
    namespaces = [NamespaceFacts(name=team, queue=f"{team}-q") for team in TEAMS]
    cluster = Recorded({"n1": 2, "n2": 2}, QUEUES, seed=seed, options=options, namespaces=namespaces)
    requests = _requests(chance)
    filtered: list[tuple[str, str]] = []
    for step in range(60):
        team = chance.choice(TEAMS)
        movable = chance.random() < 0.5
        cluster.create(
            next(requests), name=f"{team}-pod-{step}", namespace=team, movable=movable, owner=f"owner-of-{team}"
        )
        if step % 10 == 0:
            _budgets(cluster, chance)
        if step % 7 == 0:
            cluster.protected = {uid for uid in cluster.pods if chance.random() < 0.4}
        cluster.now_s += chance.choice([0.5, 2.0, 12.0])
        cluster.settle(2)
        if cluster.bound() and chance.random() < 0.3:
            cluster.end(chance.choice(sorted(cluster.bound())))
        for uid, one in cluster.pods.items():
            answer = cluster.core.answers.filter(uid, ["n1", "n2"], "", cluster.now_s)
            filtered.append((one.namespace, answer.text))
    texts = [*cluster.texts, *filtered]
    assert sum(bool(text) for _, text in texts) > 20
    assert any("of another namespace" in text or "of other namespaces" in text for _, text in texts)
    for namespace, text in texts:
        named = [team for team in TEAMS if team in text and team != namespace]
        assert named == [], f"readers of {namespace}: {text}"
        assert text.isprintable(), "no mark is left in a text"
